//! A network on the device: its parameters, its batches, and the passes over them.

use super::layout::{self, Entry, Status, TURN_HEADER, Turn, VALUES};
use super::shape::{Call, Class, Common, Reads, STATUS_BYTES, Shape, turn_bytes};
use super::store::Store;
use crate::Result;
use crate::engine::cpu::pool::Pool;
use crate::engine::cuda::Device;
use crate::engine::cuda::device::{Buffer, arguments};
use crate::engine::pinet::cpu::plan::Plan;
use crate::engine::pinet::cpu::weights;
use crate::model::pinet::PinetModel;
use crate::optim::keras_adam::Clip;
use std::collections::HashMap;
use std::sync::Arc;

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
    sources: Buffer,
    ops: Buffer,
}

/// A network on a GPU.
pub struct Core {
    pub device: Arc<Device>,
    pub plan: Plan,
    pub store: Store,
    pub params: Buffer,
    pub first_moment: Buffer,
    pub second_moment: Buffer,
    pub grad: Buffer,
    pub turn: Buffer,
    n_params: usize,
    n_variables: usize,
    n_packed: usize,
    packed: Buffer,
    map: Buffer,
    pull: Option<Buffer>,
    /// First parameter of every variable, and the number of all; the variable of every parameter; squares of norms.
    first: Buffer,
    variable: Buffer,
    squares: Buffer,
    status: Buffer,
    values: Buffer,
    forces: bool,
    loss: Option<LossTerms>,
    pool: i32,
    memory: Buffer,
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
        let zeros = |bytes: usize, what: &str| Buffer::zeroed(device, bytes, what);
        let pull = loss.as_ref().and_then(|loss| loss.pull.as_ref());
        let (free, _) = device.memory()?;
        Ok(Core {
            store: Store::new(device, (free as f64 * STORE_SHARE) as usize),
            params: zeros(8 * n_params, "parameters")?,
            first_moment: zeros(8 * n_params, "moments")?,
            second_moment: zeros(8 * n_params, "moments")?,
            grad: zeros(8 * (n_params + 1), "the gradient")?,
            turn: zeros(turn_bytes(64, 4096), "a batch")?,
            n_params,
            n_variables,
            n_packed: map.len(),
            packed: zeros(map.len() * device.numbers.size(), "weights")?,
            map: Buffer::of(device, &map, "weights")?,
            pull: pull.map(|pull| Buffer::of(device, pull, "the regulariser")).transpose()?,
            first: Buffer::of(device, &first, "variables")?,
            variable: Buffer::of(device, &variable, "variables")?,
            squares: zeros(8 * n_variables, "norms")?,
            status: zeros(STATUS_BYTES, "the status")?,
            values: zeros(8 * VALUES, "values")?,
            forces,
            loss,
            pool: layout::pool_number(model.options.out_pool),
            memory: zeros(16, "a batch")?,
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
        let mut shape = self.lay_out(class, self.memory.ptr());
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
            turn: self.turn.ptr(),
            status: self.status.ptr(),
            values: self.values.ptr(),
            packed: self.packed.ptr(),
            multiprocessors: self.device.multiprocessors,
            real: self.device.numbers.size(),
            forces: self.forces,
        };
        Shape::new(&self.plan, class, start, common, self.n_params, self.pool)
    }

    fn call(&self, shape: &Shape, ops: u64, call: &Call) -> Result<()> {
        let launch = |arguments: &mut [*mut std::ffi::c_void]| {
            self.device.launch(call.name, call.grid, call.block, call.shared, arguments)
        };
        match call.reads {
            Reads::Op => launch(arguments![call.op]),
            Reads::BatchAndOp => launch(arguments![shape.batch, call.op]),
            Reads::Chain(first, n) => {
                let (at, n) = (ops + (first * size_of::<layout::Op>()) as u64, n as i32);
                launch(arguments![shape.batch, at, n])
            }
        }
    }

    fn pass(&self, shape: &Shape, which: usize) -> Result<()> {
        let ops = self.known(shape).ops.ptr();
        shape.passes[which].iter().try_for_each(|call| self.call(shape, ops, call))
    }

    fn known(&self, shape: &Shape) -> &Known {
        self.shapes.get(&shape.class).expect("a shape of this network")
    }

    /// A kernel over `n` elements of a batch.
    fn over(&self, shape: &Shape, name: &'static str, n: usize, block: usize) -> Result<()> {
        let grid = n.div_ceil(block).clamp(1, 16 * self.device.multiprocessors);
        self.device.launch(name, grid, block, 0, arguments![shape.batch])
    }

    /// Outputs, energies, and where they are wanted forces and stress.
    pub fn first_pass(&self, shape: &Shape) -> Result<()> {
        let class = shape.class;
        self.device.launch("gather", class.structures, 256, 0, arguments![shape.batch])?;
        // SAFETY: inside the memory of the shape.
        let code = unsafe {
            (self.device.driver().memset_d8_async)(
                shape.sums.0,
                0,
                shape.sums.1,
                self.device.stream().handle(),
            )
        };
        self.device.check(code, "clear memory")?;
        self.pass(shape, 0)?;
        self.over(shape, "energies", 32 * class.structures, 128)?;
        if self.forces {
            self.pass(shape, 1)?;
            self.over(shape, "pair_gradient", class.pairs, 256)?;
            self.over(shape, "forces", 3 * class.atoms, 128)?;
            self.device.launch("stresses", class.structures, 128, 0, arguments![shape.batch])?;
        }
        Ok(())
    }

    /// The loss and its seeds.
    pub fn loss(&self, shape: &Shape) -> Result<()> {
        self.over(shape, "losses", 32 * shape.class.structures, 128)?;
        let (params, n) = (self.params.ptr(), self.n_params as u32);
        let pull = self.pull.as_ref().map_or(0, Buffer::ptr);
        let threads = 32 * (VALUES - 1);
        self.device.launch("sum_values", 1, threads, 0, arguments![shape.batch, params, pull, n])
    }

    /// The gradient of the loss from its seeds.
    pub fn second_pass(&self, shape: &Shape) -> Result<()> {
        self.over(shape, "seed_outputs", shape.class.atoms, 256)?;
        if self.forces {
            self.over(shape, "set_tangents", shape.class.pairs, 256)?;
            self.pass(shape, 2)?;
        }
        self.pass(shape, 3)?;
        let sources = self.known(shape).sources.ptr();
        let (grad, params, n) = (self.grad.ptr(), self.params.ptr(), self.n_params as u32);
        let pull = self.pull.as_ref().map_or(0, Buffer::ptr);
        let (grid, turn) = ((self.n_params + 1).div_ceil(32), self.turn.ptr());
        self.device.launch("reduce", grid, 256, 0, arguments![grad, sources, params, pull, n, turn])
    }

    /// Makes the mean of a gradient that was added up over ranks.
    pub fn mean(&self) -> Result<()> {
        let (grad, n) = (self.grad.ptr(), self.n_params as u32);
        let (turn, status) = (self.turn.ptr(), self.status.ptr());
        self.device.launch(
            "mean",
            (self.n_params + 1).div_ceil(256),
            256,
            0,
            arguments![grad, n, turn, status],
        )
    }

    /// Cuts the gradient down and takes a step with it.
    pub fn update(&self, clip: Clip) -> Result<()> {
        let (kind, most) = match clip {
            Clip::None => (0i32, 0.0f64),
            Clip::Variable(most) => (1, most),
            Clip::Global(most) => (2, most),
            Clip::Value(most) => (3, most),
        };
        let (squares, grad, first) = (self.squares.ptr(), self.grad.ptr(), self.first.ptr());
        self.device.launch("norms", self.n_variables, 256, 0, arguments![squares, grad, first])?;
        let (params, variable) = (self.params.ptr(), self.variable.ptr());
        let (m, v) = (self.first_moment.ptr(), self.second_moment.ptr());
        let (n_variables, n) = (self.n_variables as u32, self.n_params as u32);
        let (turn, status) = (self.turn.ptr(), self.status.ptr());
        self.device.launch(
            "adam",
            self.n_params.div_ceil(256),
            256,
            0,
            arguments![params, m, v, grad, squares, variable, n_variables, n, kind, most, turn, status],
        )?;
        self.pack()
    }

    fn pack(&self) -> Result<()> {
        let (packed, params, map) = (self.packed.ptr(), self.params.ptr(), self.map.ptr());
        let n = self.n_packed as u32;
        self.device.launch("pack", self.n_packed.div_ceil(256), 256, 0, arguments![packed, params, map, n])
    }

    /// The loss, sums of every kind of error, and the regulariser, of the last batch.
    pub fn values(&self) -> Result<[f64; VALUES]> {
        let mut values = [0.0; VALUES];
        self.values.read(0, &mut values)?;
        Ok(values)
    }

    pub fn status(&self) -> Result<Status> {
        let mut status = [Status::default()];
        self.status.read(0, &mut status)?;
        Ok(status[0])
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
    // SAFETY: plain structures of numbers without gaps, read as bytes.
    unsafe {
        bytes.extend(std::slice::from_raw_parts((&raw const turn).cast::<u8>(), TURN_HEADER));
        bytes.extend(std::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), size_of_val(&entries[..])));
    }
    for word in chosen.unwrap_or_default().chunks(32) {
        let bits = word.iter().enumerate().map(|(k, &c)| u32::from(c) << k).sum::<u32>();
        bytes.extend(bits.to_le_bytes());
    }
    Class::of(batch.len(), atoms as usize, pairs as usize)
}
