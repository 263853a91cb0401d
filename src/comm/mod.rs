//! Sums, broadcasts and barriers over ranks.
//!
//! [`connect`] turns a [`Launch`] into a [`Communicator`] that joins **all** ranks of the job, or into an error that
//! says what was tried. It never falls back to fewer ranks: N copies that train into the same files look like one job.
//!
//! Every rank must run the same collectives in the same order. A rank that dies or falls silent becomes an error on
//! all the others that names it: see [`pulse`].

pub mod about;
pub mod element;
pub mod options;
pub mod pulse;
pub(crate) mod process;
mod secret;
mod gate;
mod net;
mod star;
mod pairwise;
mod solo;
mod shm;
mod tcp;
pub mod vectors;
mod hosts;
mod store;
mod mpi;
#[cfg(feature = "gloo")]
mod gloo;

use crate::error::{Error, Result};
use crate::launch::Launch;
pub use options::CommOptions;
use std::ops::Range;
use store::Meeting;
use vectors::{CommonVector, RankVector};

/// A group of ranks that compute in lockstep.
///
/// After an error a communicator is of no further use: tell the others with [`Communicator::abort`] and end.
pub trait Communicator: Send {
    /// What carries the data, for the log: "solo", "shared memory", "mpi (Open MPI v4.1.4)".
    fn name(&self) -> &str;
    /// My number, 0 to `size - 1`.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn size(&self) -> usize;
    /// Sums over ranks, in place. The result has the same bits on every rank, and in every run with as many ranks.
    fn all_reduce_sum_f64(&mut self, x: &mut [f64]) -> Result<()>;
    /// Sums over ranks, in place, in single precision. The same promise as for `f64`.
    fn all_reduce_sum_f32(&mut self, x: &mut [f32]) -> Result<()>;
    /// Sums over ranks, in place, exactly; wraps around on overflow.
    fn all_reduce_sum_i64(&mut self, x: &mut [i64]) -> Result<()>;
    /// Joins ranks that follow each other in groups of `each`, which divides their number, for
    /// [`Communicator::all_reduce_group_f64`]. All ranks call it.
    fn form_groups(&mut self, each: usize) -> Result<()>;
    /// Sums over the ranks of my group, in place. The result has the same bits on every rank of it, and in every run with groups as
    /// large. Groups do not wait for each other.
    fn all_reduce_group_f64(&mut self, x: &mut [f64]) -> Result<()>;
    /// The slice of a vector of `n` numbers that this rank sums up and changes in an update. Slices of ranks may overlap: then
    /// each of their owners has the same bits.
    fn slice(&self, n: usize) -> Range<usize>;
    /// A term of this rank's own, of `n` zeros, for [`Communicator::reduce_scatter`].
    fn rank_vector(&mut self, n: usize) -> Result<RankVector> {
        Ok(RankVector::own(n))
    }
    /// A vector that all ranks have in common. All give the same numbers.
    fn common_vector(&mut self, x: Vec<f64>) -> Result<CommonVector> {
        Ok(CommonVector::own(x))
    }
    /// Sums over ranks; each rank finds those of its own slice in [`RankVector::sums`]. The rest is undefined. As
    /// reproducible as [`Communicator::all_reduce_sum_f64`].
    fn reduce_scatter(&mut self, x: &mut RankVector) -> Result<()>;
    /// Gives every rank the slices of all, each from its owner.
    fn all_gather_slices(&mut self, x: &mut CommonVector) -> Result<()>;
    /// Gives every rank the bytes of `root`, whatever the length was before.
    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()>;
    /// Gives every rank the bytes of all ranks, by rank; lengths may differ.
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Returns when every rank has come.
    fn barrier(&mut self) -> Result<()>;
    /// Tells the others why this rank is about to end with an error. Best effort; returns at once or nearly so.
    fn abort(&self, why: &str);
    /// The launcher is about to end this job: [`Communicator::finish`] must not wait for anything but the ranks.
    fn hurry(&mut self) {}
    /// Parts in agreement, after the last collective. Dropping a communicator without it counts as leaving early.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// One way to join ranks.
struct Engine {
    /// The name that [`CommOptions::engine`] may ask for.
    name: &'static str,
    /// Tried only where it was asked for.
    on_request: bool,
    /// Joins all ranks, says why it is not made for this launch, or fails.
    connect: fn(&mut Meeting, &CommOptions) -> Attempt,
}

/// What came of one engine.
enum Attempt {
    /// All ranks are joined.
    Connected(Box<dyn Communicator>),
    /// Not made for this launch, and nothing was touched: the next engine may try. Every rank must conclude the same.
    NotForUs(String),
    /// Made for this launch and failed: no other engine may try, because the ranks may disagree about how it failed.
    Failed(Error),
}

/// Every engine, best first. MPI goes before the built-in ones because only MPI knows the network between hosts
/// that an mpirun spans; shared memory goes before TCP because it is faster wherever it is possible; Gloo does what TCP
/// does, slower, for networks where it is known to work.
const COMMUNICATORS: &[Engine] = &[
    Engine { name: "solo", on_request: false, connect: solo::connect },
    Engine { name: "mpi", on_request: false, connect: mpi::connect },
    Engine { name: "shm", on_request: false, connect: store::connect_shm },
    Engine { name: "tcp", on_request: false, connect: store::connect_tcp },
    #[cfg(feature = "gloo")]
    Engine { name: "gloo", on_request: true, connect: gloo::connect },
];

/// Joins all ranks of the job.
///
/// Fails on every rank when it fails on one. An error that another rank is sure to show, because it has seen the same or has
/// published it, is marked so (see [`Error::told_elsewhere`]).
pub fn connect(launch: &Launch, options: &CommOptions) -> Result<Box<dyn Communicator>> {
    let mut meeting = Meeting::new(launch, options);
    let mut tried = Vec::new();
    for engine in COMMUNICATORS {
        let wanted = options.engine.as_deref().map_or(!engine.on_request, |wanted| wanted == engine.name);
        if !wanted && launch.size > 1 {
            continue;
        }
        match (engine.connect)(&mut meeting, options) {
            Attempt::Connected(comm) => {
                assert!(
                    comm.size() == launch.size,
                    "an engine connected another number of ranks than were launched"
                );
                return Ok(comm);
            }
            Attempt::NotForUs(_) if engine.name == "solo" => {} // nobody wonders why
            Attempt::NotForUs(why) => tried.push(format!("{}: {why}", engine.name)),
            Attempt::Failed(error) => {
                tried.push(format!("{}: {}", engine.name, error.message()));
                let refused = refuse(launch, &tried, error.advice());
                return Err(if error.is_told_elsewhere() { refused.told_elsewhere() } else { refused });
            }
        }
    }
    let built_without = !cfg!(feature = "gloo") && options.engine.as_deref() == Some("gloo");
    Err(launch.one_of_host_tells(refuse(launch, &tried, built_without.then_some(NO_GLOO))))
}

const NO_GLOO: &str =
    "this program was built without Gloo: build it with `cargo build --release --features gloo`";

/// The one message for a job whose ranks cannot be joined.
fn refuse(launch: &Launch, tried: &[String], advice: Option<&str>) -> Error {
    let known = COMMUNICATORS.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
    let tried = match tried.is_empty() {
        true => format!("no engine of that name (there are {known})"),
        false => tried.join("\n    "),
    };
    let message =
        format!("{} launched {} ranks, but they cannot be joined\n    {tried}", launch.launcher, launch.size);
    let usual = "install the MPI that belongs to this launcher (srun: and choose it with --mpi=pmi2 or --mpi=pmix), \
                 or start the ranks with torchrun or horovodrun; one process alone needs none of them";
    Error::new(message).help(advice.unwrap_or(usual))
}

/// `n` connected ranks inside this process, over the shared-memory engine: for tests, one thread each.
pub fn local_group(n: usize) -> Vec<Box<dyn Communicator>> {
    local_group_with(n, &CommOptions::default())
}

/// [`local_group`] with limits of its own.
pub fn local_group_with(n: usize, options: &CommOptions) -> Vec<Box<dyn Communicator>> {
    shm::local_group(n, options)
}

#[cfg(test)]
mod tests;
