//! Tensors as TensorFlow serialises them.

use crate::error::Result;
use crate::report::record::{Fields, Wire, put_bytes, put_varint_field};
use crate::{bail, err};

/// A tensor with the numbers in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Whole numbers of 64 bits lose digits beyond 2^53, which no index or atomic number reaches.
    pub numbers: Vec<f64>,
}

/// The number types that data sets have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    Float32,
    Float64,
    Int32,
    Int64,
}

/// Name, number on the wire and bytes of each type.
const DTYPES: [(Dtype, &str, u64, usize); 4] = [
    (Dtype::Float32, "float32", 1, 4),
    (Dtype::Float64, "float64", 2, 8),
    (Dtype::Int32, "int32", 3, 4),
    (Dtype::Int64, "int64", 9, 8),
];

impl Dtype {
    /// Reads a name such as `float32`.
    pub fn parse(name: &str) -> Result<Dtype> {
        let found = DTYPES.iter().find(|(_, known, _, _)| *known == name);
        found.map(|(dtype, ..)| *dtype).ok_or_else(|| err!("\"{name}\" is not a number type of a data set"))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    fn row(self) -> &'static (Dtype, &'static str, u64, usize) {
        DTYPES.iter().find(|(dtype, ..)| *dtype == self).expect("every type is in the table")
    }
}

impl Tensor {
    /// Reads a serialised tensor.
    pub fn parse(message: &[u8]) -> Result<Tensor> {
        let (mut dtype, mut shape, mut content) = (None, Vec::new(), &[][..]);
        for field in Fields::of(message) {
            match field? {
                (1, Wire::Varint(number)) => dtype = Some(dtype_of(number)?),
                (2, Wire::Bytes(bytes)) => shape = parse_shape(bytes)?,
                (4, Wire::Bytes(bytes)) => content = bytes,
                _ => {}
            }
        }
        let dtype = dtype.ok_or_else(|| err!("a tensor without a number type"))?;
        let bytes = dtype.row().3;
        let wanted = shape.iter().try_fold(bytes, |n: usize, &d| n.checked_mul(d));
        if wanted != Some(content.len()) {
            bail!("a tensor of shape {shape:?} with {} bytes of {}", content.len(), dtype.name());
        }
        Ok(Tensor {
            dtype,
            shape,
            numbers: content.chunks_exact(bytes).map(|chunk| number(dtype, chunk)).collect(),
        })
    }

    /// Serialises float32 or int32 numbers. A number that float32 cannot hold is an error.
    pub fn serialise(dtype: Dtype, shape: &[usize], numbers: &[f64]) -> Result<Vec<u8>> {
        let mut dims = Vec::new();
        for &d in shape {
            let mut dim = Vec::new();
            put_varint_field(&mut dim, 1, d as u64);
            put_bytes(&mut dims, 2, &dim);
        }
        let mut content = Vec::with_capacity(4 * numbers.len());
        for &x in numbers {
            match dtype {
                Dtype::Float32 if (x as f32).is_finite() => {
                    content.extend_from_slice(&(x as f32).to_le_bytes())
                }
                Dtype::Int32 => content.extend_from_slice(&(x as i32).to_le_bytes()),
                _ => bail!("{x} cannot be stored as {}", dtype.name()),
            }
        }
        let mut out = Vec::new();
        put_varint_field(&mut out, 1, dtype.row().2);
        put_bytes(&mut out, 2, &dims);
        put_bytes(&mut out, 4, &content);
        Ok(out)
    }
}

fn dtype_of(number: u64) -> Result<Dtype> {
    let found = DTYPES.iter().find(|(_, _, wire, _)| *wire == number);
    found.map(|(dtype, ..)| *dtype).ok_or_else(|| {
        err!("a tensor of number type {number}")
            .help("wanted float32 (1), float64 (2), int32 (3) or int64 (9)")
    })
}

fn parse_shape(message: &[u8]) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    for field in Fields::of(message) {
        if let (2, Wire::Bytes(dim)) = field? {
            let mut size = 0; // a size of zero is not written
            for field in Fields::of(dim) {
                if let (1, Wire::Varint(n)) = field? {
                    size = usize::try_from(n).map_err(|_| err!("a dimension of {n}"))?;
                }
            }
            shape.push(size);
        }
    }
    Ok(shape)
}

fn number(dtype: Dtype, chunk: &[u8]) -> f64 {
    let four = || *chunk.first_chunk::<4>().expect("chunks have the size of the type");
    let eight = || *chunk.first_chunk::<8>().expect("chunks have the size of the type");
    match dtype {
        Dtype::Float32 => f32::from_le_bytes(four()).into(),
        Dtype::Float64 => f64::from_le_bytes(eight()),
        Dtype::Int32 => i32::from_le_bytes(four()).into(),
        Dtype::Int64 => i64::from_le_bytes(eight()) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_is_serialised_byte_by_byte_as_tensorflow_does() {
        let bytes = Tensor::serialise(Dtype::Float32, &[], &[1.0]).unwrap();
        assert_eq!(bytes, [0x08, 0x01, 0x12, 0x00, 0x22, 0x04, 0, 0, 0x80, 0x3f]);
        let bytes = Tensor::serialise(Dtype::Int32, &[3], &[8.0, 1.0, 1.0]).unwrap();
        assert_eq!(bytes[..10], [0x08, 0x03, 0x12, 0x04, 0x12, 0x02, 0x08, 0x03, 0x22, 0x0c]);
        assert_eq!(Tensor::parse(&bytes).unwrap().numbers, [8.0, 1.0, 1.0]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_without_asking_for_memory() {
        let mut bytes = Tensor::serialise(Dtype::Float32, &[usize::MAX, 3], &[1.0; 3]).unwrap();
        assert!(Tensor::parse(&bytes).unwrap_err().message().contains("with 12 bytes of float32"));
        bytes[1] = 7;
        assert!(Tensor::parse(&bytes).unwrap_err().message().contains("number type 7"));
        assert!(Tensor::serialise(Dtype::Float32, &[], &[1e39]).is_err());
    }
}
