//! A data set that is read one structure at a time.

use super::sample::{Keys, Sample};
use crate::bail;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;

/// A data set on disk. What it holds in memory is an index; structures are read when they are asked for.
pub trait Source: Send + Sync {
    /// The number of structures.
    fn len(&self) -> usize;

    /// Reads one structure. It has the labels of [`Source::keys`], and it was checked.
    ///
    /// Panics where `index` is not below [`Source::len`].
    fn read(&self, index: usize) -> Result<Sample>;

    /// Reads one structure for itself: with all the digits of the file, and its own labels and cell whatever the others have.
    fn read_as_stored(&self, index: usize) -> Result<Sample> {
        self.read(index)
    }

    /// The labels that every structure has.
    fn keys(&self) -> Keys;

    /// The file or folder, for messages.
    fn place(&self) -> String;

    /// Structures that were stored together as one batch; `None` where each is stored on its own.
    fn batches(&self) -> Option<&[Range<usize>]> {
        None
    }

    /// Reads the structures of one of [`Source::batches`].
    fn read_batch(&self, batch: usize) -> Result<Vec<Sample>> {
        let batches = self.batches().expect("only stored batches are read as such");
        batches[batch].clone().map(|index| self.read(index)).collect()
    }

    /// True where there is nothing; opening such a data set is an error.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Some structures of a data set, in an order of their own.
pub struct Subset {
    source: Arc<dyn Source>,
    indices: Vec<usize>,
}

impl Subset {
    /// The structures at these indices.
    pub fn new(source: Arc<dyn Source>, indices: Vec<usize>) -> Self {
        assert!(indices.iter().all(|&i| i < source.len()), "a subset points behind the end of its data set");
        Subset { source, indices }
    }
}

impl Source for Subset {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn read(&self, index: usize) -> Result<Sample> {
        self.source.read(self.indices[index])
    }

    fn read_as_stored(&self, index: usize) -> Result<Sample> {
        self.source.read_as_stored(self.indices[index])
    }

    fn keys(&self) -> Keys {
        self.source.keys()
    }

    fn place(&self) -> String {
        self.source.place()
    }
}

/// Data sets one after the other.
pub struct Joined {
    parts: Vec<Box<dyn Source>>,
    /// Index of the first structure of each part, and the end.
    firsts: Vec<usize>,
    keys: Keys,
}

impl Joined {
    /// Joins data sets that have the same labels. There is at least one.
    pub fn new(parts: Vec<Box<dyn Source>>) -> Result<Self> {
        let Some(first) = parts.first() else { bail!("a data set of no files") };
        let keys = first.keys();
        if let Some(other) = parts.iter().find(|part| part.keys() != keys) {
            bail!(
                "{} has the labels {}, but {} has {}",
                first.place(),
                keys.names().join(" "),
                other.place(),
                other.keys().names().join(" ")
            );
        }
        let mut firsts = vec![0];
        for part in &parts {
            firsts.push(firsts[firsts.len() - 1] + part.len());
        }
        Ok(Joined { parts, firsts, keys })
    }

    /// The part that a structure is in, and its place there.
    fn place_of(&self, index: usize) -> (&dyn Source, usize) {
        assert!(index < self.len(), "structure {index} of {}", self.len());
        let part = self.firsts.partition_point(|&first| first <= index) - 1;
        (&*self.parts[part], index - self.firsts[part])
    }
}

impl Source for Joined {
    fn len(&self) -> usize {
        self.firsts[self.parts.len()]
    }

    fn read(&self, index: usize) -> Result<Sample> {
        let (part, index) = self.place_of(index);
        part.read(index)
    }

    fn read_as_stored(&self, index: usize) -> Result<Sample> {
        let (part, index) = self.place_of(index);
        part.read_as_stored(index)
    }

    fn keys(&self) -> Keys {
        self.keys
    }

    fn place(&self) -> String {
        match &self.parts[..] {
            [one] => one.place(),
            [first, .., last] => format!("{} ... {}", first.place(), last.place()),
            [] => unreachable!("a joined data set has at least one part"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A data set in memory.
    pub(crate) struct Memory(pub Vec<Sample>);

    impl Source for Memory {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn read(&self, index: usize) -> Result<Sample> {
            Ok(self.0[index].clone())
        }

        fn keys(&self) -> Keys {
            self.0[0].keys()
        }

        fn place(&self) -> String {
            "memory".into()
        }
    }

    fn numbered(energies: &[f64]) -> Memory {
        Memory(energies.iter().map(|&e| Sample { e_data: Some(e), ..Sample::default() }).collect())
    }

    #[test]
    fn a_subset_follows_its_indices() {
        let subset = Subset::new(Arc::new(numbered(&[0.0, 1.0, 2.0])), vec![2, 0]);
        assert_eq!(subset.len(), 2);
        assert_eq!(subset.read(0).unwrap().e_data, Some(2.0));
    }

    #[test]
    fn joined_data_sets_follow_each_other_and_need_the_same_labels() {
        let joined = Joined::new(vec![Box::new(numbered(&[0.0, 1.0])), Box::new(numbered(&[2.0]))]).unwrap();
        let energies: Vec<_> = (0..joined.len()).map(|i| joined.read(i).unwrap().e_data.unwrap()).collect();
        assert_eq!(energies, [0.0, 1.0, 2.0]);
        let other = Memory(vec![Sample::default()]);
        assert!(Joined::new(vec![Box::new(numbered(&[0.0])), Box::new(other)]).is_err());
    }
}
