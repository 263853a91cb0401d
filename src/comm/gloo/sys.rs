//! The door to Gloo as `shim.cc` makes it.

use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    pub fn phalanx_gloo_open(
        rank: c_int,
        size: c_int,
        address: *const c_char,
        limit_ms: i64,
        why: *mut c_char,
        room: usize,
    ) -> *mut c_void;
    pub fn phalanx_gloo_address(
        mesh: *mut c_void,
        peer: c_int,
        out: *mut c_char,
        space: usize,
        why: *mut c_char,
        room: usize,
    ) -> usize;
    pub fn phalanx_gloo_connect(
        mesh: *mut c_void,
        peer: c_int,
        address: *const c_char,
        n: usize,
        why: *mut c_char,
        room: usize,
    ) -> bool;
    pub fn phalanx_gloo_close(mesh: *mut c_void);
    pub fn phalanx_gloo_post(
        mesh: *mut c_void,
        outgoing: bool,
        peer: c_int,
        bytes: *mut c_void,
        n: usize,
        why: *mut c_char,
        room: usize,
    ) -> *mut c_void;
    pub fn phalanx_gloo_wait(message: *mut c_void, limit_ms: i64, why: *mut c_char, room: usize) -> c_int;
    pub fn phalanx_gloo_interrupt(message: *mut c_void);
    pub fn phalanx_gloo_drop(message: *mut c_void);
}
