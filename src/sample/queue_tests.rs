//! Order, errors, early ends and the budget of the queue.

use super::cache::Prepared;
use super::draw::{Draw, FrameId, Pool, Purpose, Sampler};
use super::queue::{Queue, QueueOptions};
use crate::data::options::{BatchSize, SystemWeights};
use crate::data::testing::{TestSystem, names};
use crate::data::{Dataset, Frame, Labels, System, Wants};
use crate::err;
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

struct Tag(FrameId);

impl Prepared for Tag {
    fn bytes(&self) -> usize {
        1000
    }
}

const OPTIONS: QueueOptions =
    QueueOptions { threads: 4, depth: 8, cache_bytes: 1 << 20, in_bursts: false, rank: 0, size: 1 };

fn pool() -> Arc<Pool> {
    Arc::new(Pool::new(vec![7, 3, 40], vec![2, 1, 3], &[1.0, 2.0, 3.0]))
}

fn sampler(start: u64) -> Sampler {
    Sampler::at(pool(), 42, Purpose::Training, start)
}

fn draws(start: u64, count: usize) -> Vec<Draw> {
    let mut sampler = sampler(start);
    (0..count).map(|_| sampler.draw()).collect()
}

/// A frame that says which one it is.
fn read(id: FrameId) -> Result<Frame> {
    Ok(Frame {
        types: vec![0].into(),
        coord: vec![id.system as f64, id.frame as f64, 0.0],
        cell: None,
        fparam: Vec::new(),
        aparam: Vec::new(),
        sorted: false,
        labels: Labels::default(),
    })
}

fn prepare(frame: &Frame) -> Result<Tag> {
    Ok(Tag(FrameId { system: frame.coord[0] as usize, frame: frame.coord[1] as usize }))
}

/// Between nothing and two milliseconds, differently for each frame.
fn dawdle(id: FrameId) {
    let x = (id.system * 7919 + id.frame * 104_729) % 2000;
    std::thread::sleep(Duration::from_micros(x as u64));
}

#[track_caller]
fn check_next(queue: &mut Queue<Tag>, want: &Draw) {
    let batch = queue.next().unwrap();
    let frames: Vec<FrameId> = batch.frames.iter().map(|loaded| loaded.id).collect();
    assert_eq!((batch.draw, &frames), (want.number, &want.frames));
    assert!(batch.frames.iter().all(|loaded| loaded.prepared.0 == loaded.id));
}

#[test]
fn bursts_bring_the_same_batches_and_load_only_while_the_consumer_waits() {
    let loaded = Arc::new(AtomicUsize::new(0));
    let counter = loaded.clone();
    let counted = move |id: FrameId| {
        counter.fetch_add(1, Ordering::SeqCst);
        read(id)
    };
    let options = QueueOptions { in_bursts: true, depth: 4, cache_bytes: 0, ..OPTIONS };
    let mut bursts = Queue::start(sampler(7), options, counted, prepare).unwrap();
    for want in draws(7, 40) {
        check_next(&mut bursts, &want);
        let before = loaded.load(Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert_eq!(loaded.load(Ordering::SeqCst), before, "nobody loads while the consumer works");
    }
}

#[test]
fn batches_come_in_the_order_of_the_draws_whatever_the_threads_do() {
    for (threads, depth) in [(1, 1), (1, 5), (3, 2), (8, 16)] {
        let read = |id| {
            dawdle(id);
            read(id)
        };
        let mut queue =
            Queue::start(sampler(100), QueueOptions { threads, depth, ..OPTIONS }, read, prepare).unwrap();
        for want in draws(100, 150) {
            check_next(&mut queue, &want);
        }
    }
}

#[test]
fn each_rank_takes_every_nth_draw() {
    let all = draws(10, 60);
    for size in [1, 2, 3, 5] {
        for rank in 0..size {
            let options = QueueOptions { rank, size, ..OPTIONS };
            let mut queue = Queue::start(sampler(10), options, read, prepare).unwrap();
            for want in all.iter().skip(rank).step_by(size) {
                check_next(&mut queue, want);
            }
        }
    }
}

#[test]
fn an_error_stands_where_its_batch_would_and_the_others_still_come() {
    let all = draws(0, 60);
    let bad = all[20].frames[0];
    let fails = move |id: FrameId| {
        dawdle(id);
        if id == bad { Err(err!("frame {} is broken", id.frame)) } else { read(id) }
    };
    let mut queue = Queue::start(sampler(0), OPTIONS, fails, prepare).unwrap();
    let mut errors = 0;
    for want in &all {
        if want.frames.contains(&bad) {
            errors += 1;
            assert_eq!(queue.next().err().unwrap().message(), format!("frame {} is broken", bad.frame));
        } else {
            check_next(&mut queue, want);
        }
    }
    assert!(errors > 0);
}

#[test]
fn a_panic_in_a_loader_is_an_error_and_not_a_hang() {
    let all = draws(0, 40);
    let bad = all[5].frames[0];
    let panics = move |frame: &Frame| {
        let tag = prepare(frame)?;
        assert!(tag.0 != bad, "this frame makes the engine panic");
        Ok(tag)
    };
    let mut queue = Queue::start(sampler(0), OPTIONS, read, panics).unwrap();
    let outcomes: Vec<Result<u64>> = (0..40).map(|_| queue.next().map(|batch| batch.draw)).collect();
    assert!(outcomes[5].as_ref().unwrap_err().message().contains("this frame makes the engine panic"));
    for (outcome, want) in outcomes.iter().zip(&all) {
        let hit = want.frames.contains(&bad);
        assert_eq!(outcome.as_ref().ok(), if hit { None } else { Some(&want.number) });
    }
}

#[test]
fn dropping_the_queue_stops_its_threads_at_once() {
    let active = Arc::new(AtomicUsize::new(0));
    for taken in [0, 3] {
        let counter = active.clone();
        let slow = move |id| {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            counter.fetch_sub(1, Ordering::SeqCst);
            read(id)
        };
        let mut queue =
            Queue::start(sampler(0), QueueOptions { depth: 1000, ..OPTIONS }, slow, prepare).unwrap();
        (0..taken).for_each(|_| drop(queue.next().unwrap()));
        let start = Instant::now();
        drop(queue);
        assert!(start.elapsed() < Duration::from_secs(2), "a thousand batches would take longer");
        assert_eq!(active.load(Ordering::SeqCst), 0, "a thread outlived the queue");
    }
}

#[test]
fn no_more_than_depth_batches_are_read_ahead() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = reads.clone();
    let counted = move |id| {
        counter.fetch_add(1, Ordering::SeqCst);
        read(id)
    };
    let pool = Arc::new(Pool::new(vec![1000], vec![1], &[1.0]));
    let sampler = Sampler::new(pool, 1, Purpose::Training);
    let mut queue = Queue::start(sampler, QueueOptions { depth: 5, ..OPTIONS }, counted, prepare).unwrap();
    for taken in 1..=10 {
        queue.next().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        assert!(reads.load(Ordering::SeqCst) <= taken + 5);
    }
}

/// Reads, cache hits and the most bytes ever held, after 400 batches.
fn run_with_budget(cache_bytes: usize) -> (usize, u64, usize) {
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = reads.clone();
    let counted = move |id| {
        counter.fetch_add(1, Ordering::SeqCst);
        read(id)
    };
    let options = QueueOptions { threads: 1, cache_bytes, ..OPTIONS };
    let mut queue = Queue::start(sampler(0), options, counted, prepare).unwrap();
    let mut most = 0;
    for want in draws(0, 400) {
        check_next(&mut queue, &want);
        most = most.max(queue.cache_stats().bytes);
    }
    let hits = queue.cache_stats().hits;
    drop(queue);
    (reads.load(Ordering::SeqCst), hits, most)
}

#[test]
fn frames_are_read_once_where_the_budget_holds_them_all() {
    let (reads, hits, most) = run_with_budget(1 << 20);
    assert_eq!(reads, 7 + 3 + 40);
    assert!(hits > 500 && most > 50_000);
}

#[test]
fn the_budget_is_respected_and_the_least_recently_used_are_read_again() {
    let (reads, hits, most) = run_with_budget(15_000);
    assert!(most <= 15_000 && most > 10_000, "{most} bytes held");
    assert!(reads > 50 && hits > 50, "{reads} reads, {hits} hits");
}

#[test]
fn a_budget_below_one_frame_caches_nothing_and_still_works() {
    let (reads, hits, most) = run_with_budget(100);
    assert_eq!((hits, most), (0, 0));
    assert!(reads >= draws(0, 400).iter().map(|draw| draw.frames.len()).sum::<usize>());
}

#[test]
fn frames_of_a_data_set_on_disk_come_out_as_they_were_written() {
    let files = [TestSystem::water(5), TestSystem::water(2)];
    let wants = Wants { energy: true, ..Wants::default() };
    let open = |files: &TestSystem| System::open(&files.path(), &names(&["O", "H"]), &wants).unwrap();
    let systems = files.iter().map(open).collect();
    let dataset = Arc::new(Dataset::new(systems, &BatchSize::Fixed(2), &SystemWeights::BySize).unwrap());
    let sampler = Sampler::new(Arc::new(Pool::from_dataset(&dataset)), 1, Purpose::Training);
    let source = dataset.clone();
    let read = move |id: FrameId| source.systems[id.system].read_frame(id.frame);
    let mut queue =
        Queue::start(sampler, OPTIONS, read, |_| Ok(Tag(FrameId { system: 0, frame: 0 }))).unwrap();
    for _ in 0..30 {
        for loaded in queue.next().unwrap().frames {
            let want = dataset.systems[loaded.id.system].read_frame(loaded.id.frame).unwrap();
            assert_eq!(loaded.frame, want);
            assert_eq!(want.labels.energy, Some(-100.0 + 0.25 * loaded.id.frame as f64));
        }
    }
}
