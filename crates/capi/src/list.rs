//! Neighbour lists of MD programs: what they point to is read when a model is evaluated.

use crate::arrays::{array, size};
use crate::registry::Object;
use crate::{Handle, border};
use phalanx::{Result, bail};
use std::ffi::{c_char, c_int, c_void};

/// Where the list lies in the memory of its owner.
#[derive(Clone, Copy)]
pub struct List {
    n: c_int,
    atoms: *const c_int,
    counts: *const c_int,
    firsts: *const *const c_int,
    pub mask: c_int,
}

// SAFETY: addresses; who reads from them promises that they are valid.
unsafe impl Send for List {}

impl List {
    /// `[n_local]` the neighbours of every local atom.
    ///
    /// # Safety
    /// What the list points to must be there, and nobody may write it while the slices are used.
    pub unsafe fn of_atoms<'a>(&self, n_local: usize) -> Result<Vec<&'a [i32]>> {
        let n = size("the number of atoms of the neighbour list", self.n)?;
        if n != n_local {
            bail!("the neighbour list has {n} atoms, the domain {n_local}");
        }
        // SAFETY: the caller's promise.
        let (atoms, counts, firsts) = unsafe {
            (
                array("ilist", self.atoms, n)?,
                array("numneigh", self.counts, n)?,
                array("firstneigh", self.firsts, n)?,
            )
        };
        let mut lists = vec![None; n];
        for k in 0..n {
            let Some(list) = usize::try_from(atoms[k]).ok().and_then(|i| lists.get_mut(i)) else {
                bail!("the neighbour list names atom {}, the domain has {n}", atoms[k]);
            };
            let count = size("numneigh", counts[k])?;
            // SAFETY: as above.
            if list.replace(unsafe { array("firstneigh", firsts[k], count)? }).is_some() {
                bail!("the neighbour list names atom {} twice", atoms[k]);
            }
        }
        Ok(lists.into_iter().flatten().collect())
    }
}

fn new_list(n: c_int, atoms: *mut c_int, counts: *mut c_int, firsts: *mut *mut c_int) -> Handle {
    let list = List { n, atoms, counts, firsts: firsts.cast(), mask: -1 };
    border::make(|| Ok(Object::List(list)))
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_NewNlist(
    n: c_int,
    atoms: *mut c_int,
    counts: *mut c_int,
    firsts: *mut *mut c_int,
) -> Handle {
    new_list(n, atoms, counts, firsts)
}

/// How ghosts travel between ranks is of use for networks that pass messages, which ours do not.
#[unsafe(no_mangle)]
pub extern "C" fn DP_NewNlist_comm(
    n: c_int,
    atoms: *mut c_int,
    counts: *mut c_int,
    firsts: *mut *mut c_int,
    _n_swaps: c_int,
    _send_counts: *mut c_int,
    _receive_counts: *mut c_int,
    _first_received: *mut c_int,
    _send_lists: *mut *mut c_int,
    _send_ranks: *mut c_int,
    _receive_ranks: *mut c_int,
    _world: *mut c_void,
    _n_ranks: c_int,
) -> Handle {
    new_list(n, atoms, counts, firsts)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_NlistSetMask(list: Handle, mask: c_int) {
    border::on(list, (), |object| match object {
        Object::List(list) => {
            list.mask = mask;
            Ok(())
        }
        _ => bail!("the handle is that of a model, wanted that of a neighbour list"),
    });
}

/// Of which atoms the ghosts are images is of use for networks that pass messages, which ours do not.
#[unsafe(no_mangle)]
pub extern "C" fn DP_NlistSetMapping(_list: Handle, _mapping: *mut c_int) {}

#[unsafe(no_mangle)]
pub extern "C" fn DP_NlistCheckOK(list: Handle) -> *const c_char {
    border::check(list)
}

#[unsafe(no_mangle)]
pub extern "C" fn DP_DeleteNlist(list: Handle) {
    border::delete(list);
}
