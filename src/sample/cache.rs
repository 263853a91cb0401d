//! Prepared frames within a budget of bytes; the least recently used go first.

use lru::LruCache;
use std::hash::Hash;

/// What the engine makes of a frame before the step: geometry that does not change while training.
pub trait Prepared: Send + Sync + 'static {
    /// Memory that it holds, the heap included.
    fn bytes(&self) -> usize;
}

impl Prepared for crate::data::Frame {
    fn bytes(&self) -> usize {
        crate::data::Frame::bytes(self)
    }
}

/// How the cache did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    /// Held now.
    pub bytes: usize,
}

/// A map that forgets what was not used for longest. All operations take constant time.
pub struct Lru<K: Hash + Eq, V> {
    budget_bytes: usize,
    /// Values, and the bytes that they take.
    kept: LruCache<K, (V, usize)>,
    stats: CacheStats,
}

impl<K: Hash + Eq, V: Clone> Lru<K, V> {
    pub fn new(budget_bytes: usize) -> Self {
        Lru { budget_bytes, kept: LruCache::unbounded(), stats: CacheStats::default() }
    }

    /// The value, which is now the most recently used.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let found = self.kept.get(key).map(|(value, _)| value.clone());
        match found {
            Some(_) => self.stats.hits += 1,
            None => self.stats.misses += 1,
        }
        found
    }

    /// Keeps a value, dropping others until the budget holds. A value above the whole budget is not kept.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.budget_bytes || self.kept.contains(&key) {
            return;
        }
        while self.stats.bytes + bytes > self.budget_bytes {
            let (_, (_, freed)) = self.kept.pop_lru().expect("bytes are held, so a value is");
            self.stats.bytes -= freed;
            self.stats.evictions += 1;
        }
        self.kept.put(key, (value, bytes));
        self.stats.bytes += bytes;
    }

    pub fn stats(&self) -> CacheStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut lru = Lru::new(30);
        for key in 0..3 {
            lru.insert(key, key * 10, 10);
        }
        assert_eq!(lru.get(&0), Some(0));
        lru.insert(3, 30, 10);
        assert_eq!(lru.get(&1), None);
        assert_eq!((lru.get(&0), lru.get(&2), lru.get(&3)), (Some(0), Some(20), Some(30)));
        assert_eq!(lru.stats(), CacheStats { hits: 4, misses: 1, evictions: 1, bytes: 30 });
    }

    #[test]
    fn a_value_above_the_budget_is_not_kept() {
        let mut lru = Lru::new(5);
        lru.insert(1, 1, 6);
        assert_eq!((lru.get(&1), lru.stats().bytes), (None, 0));
        lru.insert(2, 2, 5);
        lru.insert(3, 3, 1);
        assert_eq!((lru.get(&2), lru.get(&3), lru.stats().bytes), (None, Some(3), 1));
    }

    #[test]
    fn it_agrees_with_a_plain_list_over_many_operations() {
        let (mut lru, mut list) = (Lru::new(100), Vec::<(u64, usize)>::new());
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (key, bytes) = ((x >> 40) % 40, (x >> 50) as usize % 30 + 1);
            let known = list.iter().position(|entry| entry.0 == key);
            assert_eq!(lru.get(&key).is_some(), known.is_some());
            match known {
                Some(at) => {
                    let entry = list.remove(at);
                    list.push(entry);
                }
                None => {
                    lru.insert(key, (), bytes);
                    while list.iter().map(|entry| entry.1).sum::<usize>() + bytes > 100 {
                        list.remove(0);
                    }
                    list.push((key, bytes));
                }
            }
            assert_eq!(lru.stats().bytes, list.iter().map(|entry| entry.1).sum::<usize>());
        }
    }
}
