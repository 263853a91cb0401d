//! A network on the device: its parameters, its batches, and the passes over them.

use super::layout::{self, Batch, Clipping, Entry, Source, Status, TURN_HEADER, Turn, VALUES};
use super::program::*;
use super::shape::{Call, Class, Common, Reads, Shape, turn_bytes};
use super::store::Store;
use crate::Result;
use crate::engine::cpu::pool::Pool;
use crate::engine::pinet::cpu::plan::Plan;
use crate::engine::pinet::cpu::weights;
use crate::gpu::launch::Parameters;
use crate::gpu::{Buffer, Device, DevicePtr, Kernel, Launch, Ptr, Real};
use crate::model::pinet::PinetModel;
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Classes that are kept; with more of them, all are built anew.
const MOST_SHAPES: usize = 256;
/// Share of the free memory that structures may take.
const STORE_SHARE: f64 = 0.5;

/// The loss that the device computes itself.
#[derive(Debug, Clone)]
pub struct LossTerms {
    pub is_dipole: bool,
    /// Kinds of errors that are part of it.
    pub counted: [bool; crate::engine::pinet::elements::KINDS],
    pub s_weight: f64,
    /// For each parameter the derivative of the regulariser over the parameter.
    pub pull: Option<Vec<f64>>,
}

/// A structure on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resident {
    pub at: u64,
    pub n_atoms: u32,
    pub n_pairs: u32,
    /// What it adds to the divisors of the means.
    pub counts: [f64; 4],
}

/// A class with its tables on the device.
struct Known {
    shape: Arc<Shape>,
    sources: Buffer<Source>,
    ops: Buffer<layout::Op>,
}

/// A network on a GPU.
pub struct Core {
    pub device: Arc<Device>,
    pub plan: Plan,
    pub store: Store,
    pub params: Buffer<f64>,
    /// First and second moments of the gradient, for Adam.
    pub moments: [Buffer<f64>; 2],
    pub grad: Buffer<f64>,
    /// A [`Turn`] with its entries: what [`turn_of`] makes.
    turn: Buffer<u8>,
    n_params: usize,
    n_variables: usize,
    n_packed: usize,
    packed: Buffer<Real>,
    map: Buffer<u32>,
    pull: Option<Buffer<f64>>,
    /// First parameter of every variable, and the number of all; the variable of every parameter; squares of norms.
    first: Buffer<u32>,
    variable: Buffer<u32>,
    squares: Buffer<f64>,
    pub status: Buffer<Status>,
    values: Buffer<f64>,
    forces: bool,
    loss: Option<LossTerms>,
    pool: i32,
    memory: Buffer<u8>,
    shapes: HashMap<Class, Known>,
    /// Grows when memory moves: what was recorded before is worth nothing.
    pub generation: u64,
}

impl Core {
    /// `forces`: whether forces and stress are wanted; `loss`: where the device computes it.
    pub fn new(
        device: &Arc<Device>,
        model: &PinetModel,
        forces: bool,
        loss: Option<LossTerms>,
    ) -> Result<Core> {
        let plan = Plan::plain(model);
        let n_params = model.n_params();
        let map = packed_map(&plan, n_params);
        let (mut first, mut variable) = (Vec::new(), vec![0u32; n_params]);
        for (k, view) in model.table.views().iter().enumerate() {
            first.push(view.offset as u32);
            variable[view.range()].fill(k as u32);
        }
        let n_variables = first.len();
        first.push(n_params as u32);
        let zeros = |n: usize, what: &str| Buffer::zeroed(device, n, what);
        let pull = loss.as_ref().and_then(|loss| loss.pull.as_ref());
        let (free, _) = device.memory()?;
        Ok(Core {
            store: Store::new(device, (free as f64 * STORE_SHARE) as usize),
            params: zeros(n_params, "parameters")?,
            moments: [zeros(n_params, "moments")?, zeros(n_params, "moments")?],
            grad: zeros(n_params + 1, "the gradient")?,
            turn: Buffer::zeroed(device, turn_bytes(64, 4096), "a batch")?,
            n_params,
            n_variables,
            n_packed: map.len(),
            packed: Buffer::zeroed_reals(device, map.len(), "weights")?,
            map: Buffer::of(device, &map, "weights")?,
            pull: pull.map(|pull| Buffer::of(device, pull, "the regulariser")).transpose()?,
            first: Buffer::of(device, &first, "variables")?,
            variable: Buffer::of(device, &variable, "variables")?,
            squares: zeros(n_variables, "norms")?,
            status: Buffer::zeroed(device, 1, "the status")?,
            values: zeros(VALUES, "values")?,
            forces,
            loss,
            pool: layout::pool_number(model.options.out_pool),
            memory: Buffer::zeroed(device, 16, "a batch")?,
            shapes: HashMap::new(),
            generation: 0,
            plan,
            device: device.clone(),
        })
    }

    /// Sets the parameters.
    pub fn set_params(&self, params: &[f64]) -> Result<()> {
        assert_eq!(params.len(), self.n_params, "parameters of this network");
        self.params.write(0, params)?;
        self.pack()
    }

    /// Brings the turn of the next batch, which [`turn_of`] made.
    pub fn set_turn(&self, bytes: &[u8]) -> Result<()> {
        self.turn.write(0, bytes)
    }

    /// Where the turn of the next batch goes, and how many bytes there are.
    pub fn turn_address(&self) -> (DevicePtr, usize) {
        (self.turn.address(), self.turn.bytes())
    }

    /// Whether a batch of this class has come before, so that [`Core::shape`] waits for nothing.
    pub fn knows(&self, class: &Class) -> bool {
        self.shapes.contains_key(class)
    }

    /// The shape of a class, with room for it.
    pub fn shape(&mut self, class: Class) -> Result<Arc<Shape>> {
        if let Some(known) = self.shapes.get(&class) {
            return Ok(known.shape.clone());
        }
        if self.turn.bytes() < turn_bytes(class.structures, class.atoms) {
            self.forget()?;
            let bytes = turn_bytes(2 * class.structures, 2 * class.atoms);
            self.turn = Buffer::zeroed(&self.device, bytes, "a batch")?;
        }
        let bytes = self.lay_out(class, 0).bytes;
        if self.memory.bytes() < bytes {
            self.forget()?;
            self.memory = Buffer::zeroed(&self.device, 16, "a batch")?;
            self.memory = Buffer::zeroed(&self.device, bytes + bytes / 8, "a batch")?;
        }
        if self.shapes.len() >= MOST_SHAPES {
            self.forget()?;
        }
        let mut shape = self.lay_out(class, self.memory.address());
        if let Some(loss) = &self.loss {
            shape.batch.model = if loss.is_dipole { 2 } else { 1 };
            shape.batch.counted =
                (loss.counted.iter().enumerate()).map(|(k, &c)| i32::from(c) << k).sum::<i32>();
            shape.batch.s_weight = loss.s_weight;
        }
        let sources = Buffer::of(&self.device, &shape.sources, "gradients")?;
        let ops = Buffer::of(&self.device, &shape.ops, "operations")?;
        let shape = Arc::new(shape);
        self.shapes.insert(class, Known { shape: shape.clone(), sources, ops });
        Ok(shape)
    }

    /// Forgets all shapes, after the device has done what it was told.
    fn forget(&mut self) -> Result<()> {
        self.device.synchronize()?;
        self.shapes.clear();
        self.generation += 1;
        Ok(())
    }

    fn lay_out(&self, class: Class, start: u64) -> Shape {
        let common = Common {
            turn: self.turn.address(),
            status: self.status.address(),
            values: self.values.address(),
            packed: self.packed.address(),
            multiprocessors: self.device.multiprocessors,
            real: self.device.numbers.size(),
            forces: self.forces,
        };
        Shape::new(&self.plan, class, start, common, self.n_params, self.pool)
    }

    /// Starts a kernel.
    ///
    /// # Safety
    ///
    /// See the module of this engine.
    unsafe fn start<P: Parameters>(&self, kernel: Kernel<P>, launch: Launch, arguments: P) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { kernel.launch(&self.device, self.device.stream(), launch, arguments) }
    }

    fn call(&self, known: &Known, call: &Call) -> Result<()> {
        let batch = known.shape.batch;
        // SAFETY: see the module of this engine; the shape is known.
        unsafe {
            match call.reads {
                Reads::Op(kernel) => self.start(kernel, call.launch, (call.op,)),
                Reads::BatchAndOp(kernel) => self.start(kernel, call.launch, (batch, call.op)),
                Reads::Chain(kernel, first, n) => {
                    let at = known.ops.address() + (first * size_of::<layout::Op>()) as u64;
                    self.start(kernel, call.launch, (batch, Ptr::at(at), n as i32))
                }
            }
        }
    }

    fn pass(&self, shape: &Shape, which: usize) -> Result<()> {
        let known = self.known(shape);
        shape.passes[which].iter().try_for_each(|call| self.call(known, call))
    }

    /// What is known of a shape; refuses those whose memory may be gone, and those of others.
    fn known(&self, shape: &Shape) -> &Known {
        let known = self.shapes.get(&shape.class).filter(|known| std::ptr::eq(&*known.shape, shape));
        known.expect("a shape that this network keeps")
    }

    fn turn_ptr(&self) -> Ptr<Turn> {
        Ptr::at(self.turn.address())
    }

    /// A kernel over `n` elements of a batch.
    fn over(&self, shape: &Shape, kernel: Kernel<(Batch,)>, n: usize, block: usize) -> Result<()> {
        let grid = n.div_ceil(block).clamp(1, 16 * self.device.multiprocessors);
        let batch = self.known(shape).shape.batch;
        // SAFETY: see the module of this engine; the shape is known.
        unsafe { self.start(kernel, Launch::new(grid, block), (batch,)) }
    }

    /// Outputs, energies, and where they are wanted forces and stress.
    ///
    /// # Safety
    ///
    /// What [`Core::set_turn`] or a copy to [`Core::turn_address`] brought before is the turn of a batch of this shape's class.
    pub unsafe fn first_pass(&self, shape: &Shape) -> Result<()> {
        let (class, batch) = (shape.class, self.known(shape).shape.batch);
        // SAFETY: see the module of this engine; the shape is known, and the sums are inside its memory.
        unsafe {
            self.start(GATHER, Launch::new(class.structures, 256), (batch,))?;
            self.device.clear_at(shape.sums.0, shape.sums.1)?;
        }
        self.pass(shape, 0)?;
        self.over(shape, ENERGIES, 32 * class.structures, 128)?;
        if self.forces {
            self.pass(shape, 1)?;
            self.over(shape, PAIR_GRADIENT, class.pairs, 256)?;
            self.over(shape, FORCES, 3 * class.atoms, 128)?;
            // SAFETY: as above.
            unsafe { self.start(STRESSES, Launch::new(class.structures, 128), (batch,))? };
        }
        Ok(())
    }

    /// The loss and its seeds.
    ///
    /// # Safety
    ///
    /// As for [`Core::first_pass`].
    pub unsafe fn loss(&self, shape: &Shape) -> Result<()> {
        self.over(shape, LOSSES, 32 * shape.class.structures, 128)?;
        let arguments = (shape.batch, self.params.ptr(), self.pull_ptr(), self.n_params as u32);
        // SAFETY: see the module of this engine; the shape is known.
        unsafe { self.start(SUM_VALUES, Launch::new(1, 32 * (VALUES - 1)), arguments) }
    }

    /// The regulariser's derivatives, where there is one.
    fn pull_ptr(&self) -> Ptr<f64> {
        self.pull.as_ref().map_or(Ptr::NULL, Buffer::ptr)
    }

    /// The gradient of the loss from its seeds.
    ///
    /// # Safety
    ///
    /// As for [`Core::first_pass`].
    pub unsafe fn second_pass(&self, shape: &Shape) -> Result<()> {
        self.over(shape, SEED_OUTPUTS, shape.class.atoms, 256)?;
        if self.forces {
            self.over(shape, SET_TANGENTS, shape.class.pairs, 256)?;
            self.pass(shape, 2)?;
        }
        self.pass(shape, 3)?;
        let sources = self.known(shape).sources.ptr();
        let (grad, params, n) = (self.grad.ptr(), self.params.ptr(), self.n_params as u32);
        let launch = Launch::new((self.n_params + 1).div_ceil(32), 256);
        // SAFETY: see the module of this engine; every parameter has a source.
        unsafe { self.start(REDUCE, launch, (grad, sources, params, self.pull_ptr(), n, self.turn_ptr())) }
    }

    /// Makes the mean of a gradient that was added up over ranks.
    pub fn mean(&self) -> Result<()> {
        let launch = Launch::new((self.n_params + 1).div_ceil(256), 256);
        let arguments = (self.grad.ptr(), self.n_params as u32, self.turn_ptr(), self.status.ptr());
        // SAFETY: see the module of this engine; the gradient has one more number.
        unsafe { self.start(MEAN, launch, arguments) }
    }

    /// Cuts the gradient down and takes a step with it.
    pub fn update(&self, (kind, most): (Clipping, f64)) -> Result<()> {
        let kind = kind as i32;
        let (squares, grad, first) = (self.squares.ptr(), self.grad.ptr(), self.first.ptr());
        let (params, variable) = (self.params.ptr(), self.variable.ptr());
        let (m, v) = (self.moments[0].ptr(), self.moments[1].ptr());
        let (n_variables, n) = (self.n_variables as u32, self.n_params as u32);
        let (turn, status) = (self.turn_ptr(), self.status.ptr());
        let arguments = (params, m, v, grad, squares, variable, n_variables, n, kind, most, turn, status);
        // SAFETY: see the module of this engine; variables are parts of the parameters, and moments are as long.
        unsafe {
            self.start(NORMS, Launch::new(self.n_variables, 256), (squares, grad, first))?;
            self.start(ADAM, Launch::new(self.n_params.div_ceil(256), 256), arguments)?;
        }
        self.pack()
    }

    fn pack(&self) -> Result<()> {
        let (packed, params, map) = (self.packed.ptr(), self.params.ptr(), self.map.ptr());
        let launch = Launch::new(self.n_packed.div_ceil(256), 256);
        // SAFETY: see the module of this engine; the map has a parameter for every packed weight.
        unsafe { self.start(PACK, launch, (packed, params, map, self.n_packed as u32)) }
    }

    /// The loss, sums of every kind of error, and the regulariser, of the last batch.
    pub fn values(&self) -> Result<[f64; VALUES]> {
        let mut values = [0.0; VALUES];
        self.values.read(0, &mut values)?;
        Ok(values)
    }

    pub fn n_params(&self) -> usize {
        self.n_params
    }
}

/// For each packed weight the parameter that it copies, counted from 1; 0: none.
fn packed_map(plan: &Plan, n_params: usize) -> Vec<u32> {
    let numbers: Vec<f64> = (1..=n_params).map(|k| k as f64).collect();
    let mut packed: Vec<f64> = Vec::new();
    weights::pack(&mut packed, plan, &numbers, &Pool::serial());
    packed.into_iter().map(|k| k as u32).collect()
}

/// The turn of a batch as bytes; numbers of the optimiser are in `turn`.
///
/// - chosen  the force components that count; `None`: all
pub fn turn_of(turn: Turn, batch: &[Resident], chosen: Option<&[bool]>, bytes: &mut Vec<u8>) -> Class {
    let (mut atoms, mut pairs, mut counts) = (0, 0, [0.0; 4]);
    let mut entries: Vec<Entry> = Vec::with_capacity(batch.len());
    for s in batch {
        entries.push(Entry {
            at: s.at,
            first_atom: atoms,
            first_pair: pairs,
            n_atoms: s.n_atoms,
            n_pairs: s.n_pairs,
        });
        atoms += s.n_atoms;
        pairs += s.n_pairs;
        (0..4).for_each(|k| counts[k] += s.counts[k]);
    }
    if let Some(chosen) = chosen {
        counts[1] = chosen.iter().filter(|&&c| c).count() as f64;
    }
    let turn = Turn {
        chosen: chosen.map_or(0, |_| (TURN_HEADER + size_of_val(&entries[..])) as u32),
        divisor: counts.map(|n: f64| n.max(1.0)),
        n_structures: batch.len() as u32,
        n_atoms: atoms,
        n_pairs: pairs,
        ..turn
    };
    bytes.clear();
    bytes.extend(&turn.as_bytes()[..TURN_HEADER]);
    bytes.extend(entries.as_bytes());
    for word in chosen.unwrap_or_default().chunks(32) {
        let bits = word.iter().enumerate().map(|(k, &c)| u32::from(c) << k).sum::<u32>();
        bytes.extend(bits.to_le_bytes());
    }
    Class::of(batch.len(), atoms as usize, pairs as usize)
}
