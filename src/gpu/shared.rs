//! Types that host and kernels share, with one definition for both.

use super::sys::DevicePtr;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type that has a name in CUDA C++.
pub trait Named {
    fn c_type() -> String;

    /// How a field of this type is declared.
    fn declare(field: &str) -> String {
        format!("{} {field}", Self::c_type())
    }

    /// What must be declared before it: itself, where it is a structure.
    fn declaration() -> String {
        String::new()
    }
}

/// What a kernel can take.
///
/// # Safety
///
/// A value of it is laid out as one of the type of CUDA C++ with that name.
pub unsafe trait Parameter: Named + Copy {}

macro_rules! scalars {
    ($($type:ty = $name:literal),*) => {
        $(impl Named for $type {
            fn c_type() -> String {
                $name.to_string()
            }
        }
        // SAFETY: the same on the host and on every GPU: little-endian, as large, and aligned to its size.
        unsafe impl Parameter for $type {})*
    };
}
scalars!(u8 = "unsigned char", i32 = "int", u32 = "u32", u64 = "u64", f32 = "float", f64 = "double");

impl<T: Named, const N: usize> Named for [T; N] {
    fn c_type() -> String {
        format!("{}[{N}]", T::c_type())
    }

    fn declare(field: &str) -> String {
        format!("{}[{N}]", T::declare(field))
    }
}

/// A number of the kind that the kernels were compiled for, `real` in their sources: only ever seen through pointers.
pub enum Real {}

impl Named for Real {
    fn c_type() -> String {
        "real".to_string()
    }
}

/// Where values lie on a GPU; null where there are none. As with pointers of the host, having one gives no right to what is
/// there.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Ptr<T> {
    address: DevicePtr,
    of: PhantomData<T>,
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    pub const NULL: Ptr<T> = Ptr { address: 0, of: PhantomData };

    /// The values at an address.
    pub const fn at(address: DevicePtr) -> Ptr<T> {
        Ptr { address, of: PhantomData }
    }

    pub const fn address(self) -> DevicePtr {
        self.address
    }
}

impl<T: Named> Named for Ptr<T> {
    fn c_type() -> String {
        format!("{}*", T::c_type())
    }
}

// SAFETY: an address, as a pointer of the kernels is.
unsafe impl<T: Named> Parameter for Ptr<T> {}

/// What stands before the structures and kernels of every program: names of types, and how the arguments of a kernel are
/// compared with what the host gives it ([`super::launch::Signature`]). What pointers of a kernel point to may be constant.
pub const PRELUDE: &str = "typedef unsigned int u32;
typedef unsigned long long u64;
typedef REAL real;
namespace host {
template <typename... A> struct Types {};
template <typename T> struct Bare { typedef T type; };
template <typename T> struct Bare<const T*> { typedef T* type; };
template <typename T> struct Taken;
template <typename... A> struct Taken<void (*)(A...)> { typedef Types<typename Bare<A>::type...> types; };
template <typename A, typename B> struct Same { static constexpr bool value = false; };
template <typename A> struct Same<A, A> { static constexpr bool value = true; };
}
";

/// The statement that a field, or a whole structure, is as large as on the host. Those of the host have no gaps; so where all
/// fields and their sum are as large, every field stands where the host has it.
pub fn check_size(what: &str, bytes: usize) -> String {
    format!("static_assert(sizeof({what}) == {bytes}, \"{what} has another size on the host\");\n")
}

/// Declares structures for the host and, from the same words, for the kernels.
///
/// A field is a type of the host (`f64`, `[f64; 9]`, another structure), or a pointer as the kernels declare it, in
/// parentheses: `(const real*)`, `[(real*); 2]`. That is an address ([`DevicePtr`]) on the host. Structures have no gaps, so
/// that they can be read as bytes: the derive refuses them otherwise. Zeros are their default.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:tt),* $(,)? })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        pub struct $name { $($(#[$field_doc])* pub $field: $crate::gpu::shared::host_type!($type),)* }

        impl $crate::gpu::shared::Named for $name {
            fn c_type() -> String {
                stringify!($name).to_string()
            }

            fn declaration() -> String {
                use $crate::gpu::shared::check_size;
                let mut text = concat!("struct ", stringify!($name), " {\n").to_string();
                $(text += &format!("    {};\n", $crate::gpu::shared::declared!($field, $type));)*
                text += "};\n";
                $(text += &check_size(
                    concat!(stringify!($name), "::", stringify!($field)),
                    size_of::<$crate::gpu::shared::host_type!($type)>(),
                );)*
                text + &check_size(stringify!($name), size_of::<$name>())
            }
        }

        // SAFETY: both are made from the same fields in the same order, and the kernels' compiler compares their sizes.
        unsafe impl $crate::gpu::shared::Parameter for $name {})*

        /// All structures, as the kernels' compiler reads them.
        pub fn declarations() -> String {
            [$(<$name as $crate::gpu::shared::Named>::declaration()),*].concat()
        }
    };
}
pub(crate) use structures;

/// The type of a field on the host.
macro_rules! host_type {
    (($($pointer:tt)*)) => {
        $crate::gpu::DevicePtr
    };
    ([($($pointer:tt)*); $n:expr]) => {
        [$crate::gpu::DevicePtr; $n]
    };
    ($type:tt) => {
        $type
    };
}
pub(crate) use host_type;

/// The declaration of a field for the kernels.
macro_rules! declared {
    ($field:ident, ($($pointer:tt)*)) => {
        concat!(stringify!($($pointer)*), " ", stringify!($field))
    };
    ($field:ident, [($($pointer:tt)*); $n:expr]) => {
        format!("{} {}[{}]", stringify!($($pointer)*), stringify!($field), $n)
    };
    ($field:ident, $type:tt) => {
        <$type as $crate::gpu::shared::Named>::declare(stringify!($field))
    };
}
pub(crate) use declared;

#[cfg(test)]
mod tests {
    use super::*;

    structures! {
        /// A structure inside another one.
        Inner { a: i32, b: u32 }

        /// One of every kind of field.
        Outer { x: (const real*), y: [(real*); 2], z: [f64; 3], inner: [Inner; 2] }
    }

    #[test]
    fn kernels_read_the_same_fields_as_the_host() {
        let text = declarations();
        let outer = text.split("struct Outer {\n").nth(1).unwrap().split("};").next().unwrap();
        let lines: Vec<String> = outer.lines().map(|line| line.replace(' ', "")).collect();
        assert_eq!(lines, ["constreal*x;", "real*y[2];", "doublez[3];", "Innerinner[2];"]);
        assert!(
            text.contains("sizeof(Outer::inner) == 16") && text.contains("sizeof(Outer) == 64"),
            "{text}"
        );
        assert_eq!((size_of::<Outer>(), Ptr::<Ptr<Real>>::c_type()), (64, "real**".to_string()));
        let zeros = Outer::read_from_bytes(&[0; 64]).unwrap();
        assert_eq!((zeros, zeros.as_bytes().len()), (Outer::default(), 64));
    }
}
