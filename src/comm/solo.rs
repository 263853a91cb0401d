//! One rank: every collective is already done.

use super::store::Meeting;
use super::vectors::{CommonVector, RankVector};
use super::{Attempt, CommOptions, Communicator};
use crate::error::Result;

/// The communicator of a job with one rank.
pub struct Solo;

pub fn connect(meeting: &mut Meeting, _: &CommOptions) -> Attempt {
    match meeting.size() {
        1 => Attempt::Connected(Box::new(Solo)),
        _ => Attempt::NotForUs("for one rank only".to_string()),
    }
}

impl Communicator for Solo {
    fn name(&self) -> &str {
        "solo"
    }
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_reduce_sum_f64(&mut self, _: &mut [f64]) -> Result<()> {
        Ok(())
    }
    fn all_reduce_sum_f32(&mut self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
    fn all_reduce_sum_i64(&mut self, _: &mut [i64]) -> Result<()> {
        Ok(())
    }
    fn form_groups(&mut self, each: usize) -> Result<()> {
        assert!(each == 1, "one rank is a group of one");
        Ok(())
    }
    fn all_reduce_group_f64(&mut self, _: &mut [f64]) -> Result<()> {
        Ok(())
    }
    fn slice(&self, n: usize) -> std::ops::Range<usize> {
        0..n
    }
    fn reduce_scatter(&mut self, _: &mut RankVector) -> Result<()> {
        Ok(())
    }
    fn all_gather_slices(&mut self, _: &mut CommonVector) -> Result<()> {
        Ok(())
    }
    fn broadcast(&mut self, root: usize, _: &mut Vec<u8>) -> Result<()> {
        assert!(root == 0, "a broadcast from a rank that does not exist");
        Ok(())
    }
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec()])
    }
    fn barrier(&mut self) -> Result<()> {
        Ok(())
    }
    fn abort(&self, _: &str) {}
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
