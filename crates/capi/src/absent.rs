//! Spin models and the dipole modifier of DeePMD-kit, which are not here.
//!
//! The functions are there, so that programs that know them can be loaded. What makes an object gives one that says what is absent,
//! and the others leave everything as it is.

use crate::{Handle, border};
use phalanx::err;
use std::ffi::{c_char, c_double, c_int};

/// An object that cannot be made.
fn refuse(what: &str) -> Handle {
    border::make(|| {
        Err(err!("Phalanx has no {what}").help("use DeePMD-kit's own libdeepmd_c.so for this model"))
    })
}

/// A call for an object that was refused, or for one of another kind.
fn refuse_call(handle: Handle) {
    border::on(handle, (), |_| {
        Err(err!("the handle is of another kind than the function that it was given to"))
    });
}

/// Each line is a function of C with the types of its arguments; `=> value` is what it answers.
macro_rules! absent {
    ($(make $name:ident($($kind:ty),*): $what:literal;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $kind),*) -> Handle {
            refuse($what)
        }
    )*};
    ($(check $name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(handle: Handle) -> *const c_char {
            border::check(handle)
        }
    )*};
    ($(delete $name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(handle: Handle) {
            border::delete(handle);
        }
    )*};
    ($(call $name:ident($($kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $name(handle: Handle, $(_: $kind),*) {
            refuse_call(handle);
        }
    )*};
    ($(ask $name:ident -> $kind:ty => $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(handle: Handle) -> $kind {
            refuse_call(handle);
            $answer
        }
    )*};
}

type In = *const c_double;
type Out = *mut c_double;

absent! {
    make DP_NewDeepSpinWithParam2(*const c_char, c_int, *const c_char, c_int): "spin models";
    make DP_NewDeepSpinModelDeviWithParam(*const *const c_char, c_int, c_int, *const *const c_char, c_int, *const c_int): "spin models";
    make DP_NewDipoleChargeModifierWithParam(*const c_char, c_int, *const c_char): "dipole charge modifier";
}

absent! {
    check DP_DeepSpinCheckOK;
    check DP_DeepSpinModelDeviCheckOK;
    check DP_DipoleChargeModifierCheckOK;
}

absent! {
    delete DP_DeleteDeepSpin;
    delete DP_DeleteDeepSpinModelDevi;
    delete DP_DeleteDipoleChargeModifier;
}

absent! {
    call DP_DeepSpinComputeNList2(c_int, c_int, In, In, *const c_int, In, c_int, Handle, c_int, In, In, Out, Out, Out, Out, Out, Out);
    call DP_DeepSpinComputeNList3(c_int, c_int, In, In, *const c_int, In, c_int, Handle, c_int, In, In, In, Out, Out, Out, Out, Out, Out);
    call DP_DeepSpinModelDeviComputeNList2(c_int, c_int, In, In, *const c_int, In, c_int, Handle, c_int, In, In, Out, Out, Out, Out, Out, Out);
    call DP_DeepSpinModelDeviComputeNList3(c_int, c_int, In, In, *const c_int, In, c_int, Handle, c_int, In, In, In, Out, Out, Out, Out, Out, Out);
    call DP_DeepSpinSetChargeSpin(In, c_int);
    call DP_DeepSpinModelDeviSetChargeSpin(In, c_int);
    call DP_DipoleChargeModifierComputeNList(c_int, In, *const c_int, In, *const c_int, c_int, In, c_int, Handle, Out, Out);
}

absent! {
    ask DP_DeepSpinGetDimFParam -> c_int => 0;
    ask DP_DeepSpinGetDimAParam -> c_int => 0;
    ask DP_DeepSpinGetDimChgSpin -> c_int => 0;
    ask DP_DeepSpinHasDefaultFParam -> bool => false;
    ask DP_DeepSpinIsAParamNAll -> bool => false;
    ask DP_DeepSpinUsesNativeSpinScheme -> bool => false;
    ask DP_DeepSpinModelDeviGetDimFParam -> c_int => 0;
    ask DP_DeepSpinModelDeviGetDimAParam -> c_int => 0;
    ask DP_DeepSpinModelDeviGetDimChgSpin -> c_int => 0;
    ask DP_DeepSpinModelDeviHasDefaultFParam -> bool => false;
    ask DP_DeepSpinModelDeviIsAParamNAll -> bool => false;
    ask DP_DipoleChargeModifierGetNumbSelTypes -> c_int => 0;
}
