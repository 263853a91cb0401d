//! Frames in blocks within one process, for tests: what the ranks of a group do, with an engine for each of them.

use super::{Block, BlockPreparer, Engine, Prediction, Preparer, Seeds};
use crate::Result;
use crate::neighbor::Cut;
use crate::sample::Prepared;
use std::sync::Arc;

/// As many engines as there are blocks; what they give is added up.
pub struct InBlocks<E>(Vec<E>);

impl<E: Engine> InBlocks<E> {
    pub fn new(n: usize, engine: impl Fn() -> Result<E>) -> Result<Self> {
        (0..n).map(|_| engine()).collect::<Result<_>>().map(InBlocks)
    }
}

/// A frame as each of the engines has it.
pub struct AllBlocks<P>(Vec<Block<P>>);

impl<P: Prepared> Prepared for AllBlocks<P> {
    fn bytes(&self) -> usize {
        self.0.iter().map(|block| block.prepared.bytes()).sum()
    }
}

fn blocks<'a, P>(batch: &[&'a AllBlocks<P>], k: usize) -> Vec<&'a P> {
    batch.iter().map(|frame| &frame.0[k].prepared).collect()
}

impl<E: Engine> Engine for InBlocks<E> {
    type Prepared = AllBlocks<E::Prepared>;

    fn preparer(&self) -> Preparer<Self::Prepared> {
        let parts = self.0.len();
        let cut = |part| Cut { part, parts, steady: false };
        let prepare: Vec<_> = self.0.iter().enumerate().map(|(k, e)| e.block_preparer(cut(k))).collect();
        Arc::new(move |frame| {
            let blocks = prepare.iter().map(|prepare| prepare(frame)).collect::<Result<Vec<_>>>()?;
            Ok(AllBlocks(blocks.into_iter().flatten().collect()))
        })
    }

    fn block_preparer(&self, _: Cut) -> BlockPreparer<Self::Prepared> {
        unreachable!("blocks are not cut again")
    }

    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&Self::Prepared]) {
        let mut part = Prediction::default();
        for (k, engine) in self.0.iter_mut().enumerate() {
            if k == 0 {
                engine.evaluate(out, params, &blocks(batch, k));
                continue;
            }
            engine.evaluate(&mut part, params, &blocks(batch, k));
            out.add(&part);
        }
    }

    fn adapt(&mut self, params: &[f64]) {
        self.0.iter_mut().for_each(|engine| engine.adapt(params));
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&Self::Prepared], seeds: &Seeds) {
        let mut part = vec![0.0; grad.len()];
        grad.fill(0.0);
        for (k, engine) in self.0.iter_mut().enumerate() {
            engine.backward(&mut part, params, &blocks(batch, k), seeds);
            grad.iter_mut().zip(&part).for_each(|(sum, x)| *sum += x);
        }
    }

    fn forget_parameters(&mut self) {
        self.0.iter_mut().for_each(Engine::forget_parameters);
    }
}
