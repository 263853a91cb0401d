//! HybridMuon and AdaMuon on the device: its memory, and the kernels of an update with all their arguments.
//!
//! See `kernels/muon.cu` for what they do and `optim/muon.rs` for the optimiser itself.

use super::layout::{MAX_TASKS, Matrix, Muon as Arguments, Task};
use super::network::{Network, PER_BLOCK, padded};
use super::products::{Operands, ProductLaunch, ProductList};
use super::program::{
    MUON_EVEN, MUON_EVEN_LENGTH, MUON_MEASURE, MUON_MOVE, MUON_PAUSE, MUON_POLYNOMIAL, MUON_PREPARE,
};
use crate::gpu::{Buffer, Device, DevicePtr, Launch, Numbers, Ptr, Real};
use crate::{Result, err};
use std::ops::Range;
use std::sync::Arc;

/// Blocks for the elements of a polynomial.
const POLYNOMIAL_BLOCKS: usize = 32;

/// Steps after which floats begin again with X.
const RESTART: usize = 2;

/// What is to be done with the parameters.
#[derive(Debug, Clone)]
pub struct MuonPlan {
    pub matrices: Vec<MatrixPlan>,
    pub vectors: Vec<Range<usize>>,
    pub momentum: f64,
    pub weight_decay: f64,
    /// Steps of a matrix are shorter where gradient and mean disagree.
    pub is_damped: bool,
    /// AdaMuon: directions are signs, and what becomes of them is evened out.
    pub is_even: bool,
    /// Of vectors: what the learning rate is multiplied by, and what is added to the root of the second moment.
    pub vector_rate: f64,
    pub vector_epsilon: f64,
}

/// A matrix of the parameters.
#[derive(Debug, Clone)]
pub struct MatrixPlan {
    pub range: Range<usize>,
    pub shape: [usize; 2],
    /// Coefficients of X, of (X X^T) X and of (X X^T)^2 X, one after the other.
    pub polynomials: Vec<[f64; 3]>,
    /// What the learning rate is multiplied by.
    pub scale: f64,
    /// Added to the norm, or the least that X is divided by.
    pub least: f64,
    pub adds_least: bool,
}

impl MatrixPlan {
    fn short(&self) -> usize {
        self.shape[0].min(self.shape[1])
    }

    fn is_tall(&self) -> bool {
        self.shape[0] >= self.shape[1]
    }
}

/// Where the matrices of one parameter matrix are.
#[derive(Debug, Clone, Copy)]
struct Places {
    x: DevicePtr,
    moved: DevicePtr,
    gram: DevicePtr,
    square: DevicePtr,
    polynomial: DevicePtr,
    spare: DevicePtr,
    /// All polynomials so far: one is read while the other is written.
    all: [DevicePtr; 2],
}

enum Stage {
    Products(Box<ProductLaunch>),
    List(Box<ProductList>),
    Polynomial(usize),
    Pause,
}

/// An optimiser with its state on the device; running means of all parameters are those of the [`Network`].
pub struct Muon {
    /// How far gradient and mean have agreed so far, for each matrix.
    pub alignment: Buffer<f64>,
    stages: Vec<Stage>,
    arguments: Arguments,
    n_vector: usize,
    /// What the kernels read and write; owned here.
    _memory: Box<dyn Send + Sync>,
}

impl Muon {
    pub fn new(network: &Network, plan: &MuonPlan) -> Result<Muon> {
        let device = &network.device;
        if matches!(device.numbers, Numbers::Tf32 | Numbers::Bf16) {
            let e = err!("optimizer: on a GPU HybridMuon and AdaMuon want products in float32 or float64");
            return Err(e.help("leave training.gpu_products and training.mixed_precision out, or take Adam"));
        }
        for kernel in [MUON_PREPARE.name(), MUON_MEASURE.name(), MUON_POLYNOMIAL.name(), MUON_PAUSE.name()] {
            device.foresee(kernel);
        }
        device.foresee(MUON_MOVE.name());
        if plan.is_even {
            [MUON_EVEN.name(), MUON_EVEN_LENGTH.name()].into_iter().for_each(|kernel| device.foresee(kernel));
        }
        let (memory, places) = make_room(device, plan)?;
        // The rounding errors of G grow from step to step, and what becomes negative of it has no end.
        let restart = if device.numbers == Numbers::F64 { 0 } else { RESTART };
        let builder = Builder { device, plan, places: &places, restart };
        let mut stages = builder.stages()?;
        let moved = |m: &MatrixPlan, at: &Places| builder.x_and_next(at, m.polynomials.len())[1];
        let (workspace, counters) = place_products(device, &mut stages)?;
        let most_steps = plan.matrices.iter().map(|m| m.polynomials.len()).max().unwrap_or(0);
        let mut first_block = 0;
        let table: Vec<Matrix> = plan
            .matrices
            .iter()
            .zip(&places)
            .map(|(m, at)| {
                let matrix = describe(m, at, moved(m, at), first_block);
                first_block += m.range.len().div_ceil(PER_BLOCK);
                matrix
            })
            .collect();
        let polynomials: Vec<f64> = plan
            .matrices
            .iter()
            .flat_map(|m| {
                let steps = m.polynomials.iter().copied().chain(std::iter::repeat([0.0; 3]));
                steps.take(most_steps).flatten().collect::<Vec<_>>()
            })
            .collect();
        let vector: Vec<u32> =
            plan.vectors.iter().flat_map(|range| range.clone()).map(|at| at as u32).collect();
        let n_matrices = plan.matrices.len();
        let zeros = |n: usize| Buffer::<f64>::zeroed(device, n.max(1), "the optimizer");
        let alignment = Buffer::of(device, &vec![0.5; n_matrices.max(1)], "the optimizer")?;
        let (sums, inverse, length) = (zeros(4 * first_block)?, zeros(n_matrices)?, zeros(n_matrices)?);
        let n_vector = vector.len();
        let (table, polynomials, vector) = (
            Buffer::of(device, &table, "the optimizer")?,
            Buffer::of(device, &polynomials, "the optimizer")?,
            Buffer::of(device, &vector, "the optimizer")?,
        );
        let arguments = Arguments {
            params: network.learned.params.address(),
            first: network.learned.moments[0].address(),
            second: network.learned.moments[1].address(),
            grad: network.learned.grad.address(),
            squares: network.learned.squares.address(),
            sums: sums.address(),
            alignment: alignment.address(),
            inverse: inverse.address(),
            length: length.address(),
            matrices: table.address(),
            polynomials: polynomials.address(),
            vector: vector.address(),
            status: network.learned.status.address(),
            n_vector: n_vector as u64,
            n_params: network.learned.n_params as u64,
            momentum: plan.momentum,
            weight_decay: plan.weight_decay,
            n_matrices: n_matrices as i32,
            matrix_blocks: first_block as i32,
            most_steps: most_steps as i32,
            is_damped: i32::from(plan.is_damped),
            is_even: i32::from(plan.is_even),
            restart: restart as i32,
            vector_rate: plan.vector_rate,
            vector_epsilon: plan.vector_epsilon,
            ..Arguments::default()
        };
        let _memory =
            Box::new((memory, workspace, counters, (sums, inverse, length), (table, polynomials, vector)));
        Ok(Muon { alignment, stages, arguments, n_vector, _memory })
    }

    /// One update by the flat gradient; `n_squares` blocks have left its squares.
    ///
    /// # Safety
    ///
    /// The network that it was made for is there until the stream has passed this point, and `turn` has the numbers of the step.
    pub unsafe fn update(&self, device: &Device, turn: DevicePtr, n_squares: usize) -> Result<()> {
        let (main, n_squares) = (device.stream(), n_squares as i32);
        let arguments = Arguments { turn, ..self.arguments };
        let (n_matrices, blocks) = (arguments.n_matrices as usize, arguments.matrix_blocks as usize);
        let pause = || {
            // SAFETY: it reads nothing.
            unsafe { MUON_PAUSE.launch(device, main, Launch::new(1, 32), (Ptr::at(arguments.status),)) }
        };
        // SAFETY: grids cover the matrices and vectors of the tables; the rest is the caller's word.
        unsafe {
            if n_matrices > 0 {
                MUON_PREPARE.launch(device, main, Launch::new(blocks, 256), (arguments, n_squares))?;
                MUON_MEASURE.launch(device, main, Launch::new(n_matrices, 256), (arguments,))?;
            }
            for stage in &self.stages {
                match stage {
                    Stage::Products(launch) => launch.launch(device, main)?,
                    Stage::List(list) => list.launch(device, main)?,
                    Stage::Pause => pause()?,
                    Stage::Polynomial(k) => {
                        let launch = Launch::new(n_matrices * POLYNOMIAL_BLOCKS, 256);
                        let step = (arguments, *k as i32, POLYNOMIAL_BLOCKS as i32);
                        MUON_POLYNOMIAL.launch(device, main, launch, step)?;
                    }
                }
            }
            if n_matrices > 0 && arguments.is_even != 0 {
                MUON_EVEN.launch(device, main, Launch::new(blocks, 256), (arguments,))?;
                MUON_EVEN_LENGTH.launch(device, main, Launch::new(n_matrices, 256), (arguments,))?;
            }
            let blocks = blocks + self.n_vector.div_ceil(PER_BLOCK);
            MUON_MOVE.launch(device, main, Launch::new(blocks, 256), (arguments, n_squares))?;
        }
        // What comes next reads parameters before it waits.
        pause()
    }
}

fn describe(m: &MatrixPlan, at: &Places, moved: DevicePtr, first_block: usize) -> Matrix {
    let [rows, cols] = m.shape;
    Matrix {
        flat: m.range.start as u64,
        x: at.x,
        moved,
        gram: at.gram,
        square: at.square,
        polynomial: at.polynomial,
        all: at.all[0],
        scale: m.scale,
        least: m.least,
        rows: rows as i32,
        cols: cols as i32,
        ld: padded(cols) as i32,
        n: m.short() as i32,
        ldn: padded(m.short()) as i32,
        first_block: first_block as i32,
        steps: m.polynomials.len() as i32,
        adds_least: i32::from(m.adds_least),
    }
}

/// Memory of all matrices, and where each has its own.
fn make_room(device: &Arc<Device>, plan: &MuonPlan) -> Result<(Buffer<Real>, Vec<Places>)> {
    let mut end = 0;
    let mut offsets = Vec::new();
    for m in &plan.matrices {
        let (large, small) = (m.shape[0] * padded(m.shape[1]), m.short() * padded(m.short()));
        offsets.push([large, large, small, small, small, small, small, small].map(|n| {
            let at = end;
            end += n.next_multiple_of(32);
            at
        }));
    }
    let memory = Buffer::zeroed_reals(device, end.max(1), "the optimizer")?;
    let size = device.numbers.size();
    let places = offsets.into_iter().map(|offsets| {
        let [x, moved, gram, square, polynomial, spare, all, other] =
            offsets.map(|at| memory.address() + (at * size) as u64);
        Places { x, moved, gram, square, polynomial, spare, all: [all, other] }
    });
    let places = places.collect();
    Ok((memory, places))
}

/// Gives products that are cut into pieces what they need beside; kernels follow each other, so all of them share it.
fn place_products(device: &Arc<Device>, stages: &mut [Stage]) -> Result<(Buffer<Real>, Buffer<u32>)> {
    let needs = |stage: &Stage| match stage {
        Stage::Products(launch) => [launch.workspace, launch.tiles()],
        Stage::List(list) => [list.workspace, list.tiles()],
        Stage::Polynomial(_) | Stage::Pause => [0, 0],
    };
    let most = |k: usize| stages.iter().map(|stage| needs(stage)[k]).max().unwrap_or(0).max(1);
    let workspace = Buffer::zeroed_reals(device, most(0), "products")?;
    let counters = Buffer::zeroed(device, most(1), "products")?;
    for stage in stages {
        match stage {
            Stage::Products(launch) => launch.place(workspace.address(), counters.address()),
            Stage::List(list) => list.place(workspace.address(), counters.address()),
            Stage::Polynomial(_) | Stage::Pause => {}
        }
    }
    Ok((workspace, counters))
}

struct Builder<'a> {
    device: &'a Arc<Device>,
    plan: &'a MuonPlan,
    places: &'a [Places],
    /// Steps after which G is made from X again; 0: never.
    restart: usize,
}

impl Builder<'_> {
    fn stages(&self) -> Result<Vec<Stage>> {
        let mut stages = Vec::new();
        let most = self.plan.matrices.iter().map(|m| m.polynomials.len()).max().unwrap_or(0);
        // X was made two kernels before, so it does not matter that some products read it early.
        self.grams(&mut stages, 0)?;
        for k in 0..most {
            let at_work = |m: &MatrixPlan| k < m.polynomials.len();
            // G of the next step follows from that of this one.
            let goes_on = |m: &MatrixPlan| k + 1 < m.polynomials.len() && !self.begins(k + 1);
            let small = |m: &MatrixPlan, [a, b, c]: [DevicePtr; 3]| symmetric(m.short(), a, b, c);
            if k > 0 && self.begins(k) {
                self.turned(&mut stages, at_work, Some(k))?;
                stages.push(Stage::Pause);
                self.grams(&mut stages, k)?;
            }
            self.add(&mut stages, Operands::Tn, |m, at| {
                at_work(m).then(|| small(m, [at.gram, at.gram, at.square]))
            })?;
            stages.push(Stage::Polynomial(k));
            let (now, next) = ((k + 1) % 2, k % 2);
            let mut tasks: Vec<Task> = Vec::new();
            for (m, at) in self.plan.matrices.iter().zip(self.places) {
                if !self.begins(k) && at_work(m) {
                    tasks.push(small(m, [at.all[now], at.polynomial, at.all[next]]));
                }
                if goes_on(m) {
                    tasks.push(small(m, [at.gram, at.polynomial, at.spare]));
                }
            }
            self.push(&mut stages, Operands::Tn, &tasks)?;
            self.add(&mut stages, Operands::Tn, |m, at| {
                goes_on(m).then(|| small(m, [at.polynomial, at.spare, at.gram]))
            })?;
        }
        self.turned(&mut stages, |_| true, None)?;
        Ok(stages)
    }

    /// Whether G of a step is made from X.
    fn begins(&self, k: usize) -> bool {
        k == 0 || self.restart > 0 && k.is_multiple_of(self.restart)
    }

    /// X of a step, and the place for the next one, which take turns; X has been made anew before the later steps that begin with it.
    fn x_and_next(&self, at: &Places, k: usize) -> [DevicePtr; 2] {
        match (1..k).filter(|&k| self.begins(k)).count() % 2 {
            0 => [at.x, at.moved],
            _ => [at.moved, at.x],
        }
    }

    /// G of X, at the beginning of a step.
    fn grams(&self, stages: &mut Vec<Stage>, k: usize) -> Result<()> {
        let at_work = |m: &MatrixPlan| k < m.polynomials.len();
        let of = |m: &MatrixPlan, at: &Places| gram(m, self.x_and_next(at, k + 1)[0], at.gram);
        self.add(stages, Operands::Tn, |m, at| (at_work(m) && m.is_tall()).then(|| of(m, at)))?;
        self.add(stages, Operands::Nt, |m, at| (at_work(m) && !m.is_tall()).then(|| of(m, at)))
    }

    /// X of some matrices times all polynomials since it was made: those before step `k`, or all.
    fn turned(
        &self,
        stages: &mut Vec<Stage>,
        which: impl Fn(&MatrixPlan) -> bool,
        k: Option<usize>,
    ) -> Result<()> {
        // Q was made just before.
        stages.push(Stage::Pause);
        let [tall, wide] = [turned_tall, turned_wide];
        let of = |task: fn(&MatrixPlan, [DevicePtr; 3]) -> Task, m: &MatrixPlan, at: &Places| {
            let k = k.unwrap_or(m.polynomials.len());
            let [x, next] = self.x_and_next(at, k);
            task(m, [x, at.all[(k + 1) % 2], next])
        };
        self.add(stages, Operands::Nn, |m, at| (which(m) && m.is_tall()).then(|| of(tall, m, at)))?;
        self.add(stages, Operands::Tn, |m, at| (which(m) && !m.is_tall()).then(|| of(wide, m, at)))
    }

    fn add(
        &self,
        stages: &mut Vec<Stage>,
        operands: Operands,
        task: impl Fn(&MatrixPlan, &Places) -> Option<Task>,
    ) -> Result<()> {
        let all = self.plan.matrices.iter().zip(self.places);
        let tasks: Vec<Task> = all.filter_map(|(m, at)| task(m, at)).collect();
        self.push(stages, operands, &tasks)
    }

    /// All in one launch, as they are small: where they are too many for its arguments, from a list.
    fn push(&self, stages: &mut Vec<Stage>, operands: Operands, tasks: &[Task]) -> Result<()> {
        if operands == Operands::Tn && tasks.len() > MAX_TASKS {
            stages.push(Stage::List(Box::new(ProductList::new(self.device, tasks)?)));
            return Ok(());
        }
        let launches = ProductLaunch::new(self.device, operands, tasks, None);
        stages.extend(launches.into_iter().map(|launch| Stage::Products(Box::new(launch))));
        Ok(())
    }
}

/// C = A^T B, all `[n, n]`; A is symmetric.
fn symmetric(n: usize, a: DevicePtr, b: DevicePtr, c: DevicePtr) -> Task {
    let ld = padded(n) as i32;
    let n = n as i32;
    Task { a, b, c, lda: ld, ldb: ld, ldc: ld, m: n, n, k: n, ..Task::default() }
}

/// G = X^T X of a tall matrix, or X X^T of a wide one: which of them is up to the operands.
fn gram(m: &MatrixPlan, x: DevicePtr, c: DevicePtr) -> Task {
    let ([rows, cols], n) = (m.shape, m.short());
    let (ld, ldc) = (padded(cols) as i32, padded(n) as i32);
    let (n, k) = (n as i32, rows.max(cols) as i32);
    Task { a: x, b: x, c, lda: ld, ldb: ld, ldc, m: n, n, k, ..Task::default() }
}

/// C = X Q
fn turned_tall(m: &MatrixPlan, [a, b, c]: [DevicePtr; 3]) -> Task {
    let [rows, cols] = m.shape.map(|n| n as i32);
    let (ld, ldn) = (padded(m.shape[1]) as i32, padded(m.short()) as i32);
    Task { a, b, c, lda: ld, ldb: ldn, ldc: ld, m: rows, n: cols, k: cols, ..Task::default() }
}

/// C = Q X
fn turned_wide(m: &MatrixPlan, [x, q, c]: [DevicePtr; 3]) -> Task {
    let [rows, cols] = m.shape.map(|n| n as i32);
    let (ld, ldn) = (padded(m.shape[1]) as i32, padded(m.short()) as i32);
    Task { a: q, b: x, c, lda: ldn, ldb: ld, ldc: ld, m: rows, n: cols, k: rows, ..Task::default() }
}
