//! The kernels of PiNet.

use super::layout;
use crate::Result;
use crate::engine::cuda::kernels::Program;
use crate::engine::cuda::{Cuda, Device, Numbers};
use std::sync::Arc;

/// Its files, in the order in which they need each other.
const SOURCES: [&str; 8] = [
    include_str!("kernels/common.cu"),
    include_str!("kernels/dense.cu"),
    include_str!("kernels/pairs.cu"),
    include_str!("kernels/chain.cu"),
    include_str!("kernels/tensors.cu"),
    include_str!("kernels/batch.cu"),
    include_str!("kernels/loss.cu"),
    include_str!("kernels/update.cu"),
];

/// Which of them a model needs shows when it is there.
const PROGRAM: Program = Program { files: &SOURCES, options, always: |_| true };

/// Opens a GPU with the kernels of PiNet.
pub fn open(
    cuda: &Arc<Cuda>,
    index: usize,
    numbers: Numbers,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Arc<Device>> {
    Device::open_with(cuda, index, numbers, &PROGRAM, env)
}

fn options(numbers: Numbers, (major, minor): (i32, i32)) -> Vec<String> {
    let real = if numbers == Numbers::F64 { "double" } else { "float" };
    let mut options = vec![
        format!("--gpu-architecture=sm_{major}{minor}"),
        "--std=c++17".to_string(),
        "-default-device".to_string(),
        format!("-DREAL={real}"),
    ];
    options.extend(layout::sizes().into_iter().map(|(name, bytes)| format!("-D{name}_BYTES={bytes}")));
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::sys::Nvrtc;
    use crate::engine::cuda::{compile, library};

    #[test]
    fn every_kernel_of_pinet_compiles_for_both_kinds_of_number() {
        let env = |name: &str| std::env::var(name).ok();
        let library = match library::load(&library::NVRTC, &env) {
            Ok(library) => library,
            Err(e) => return println!("every_kernel_of_pinet_compiles: skipped, {}", e.message()),
        };
        let nvrtc = Nvrtc::bind(library).unwrap();
        for numbers in [Numbers::F64, Numbers::F32] {
            for capability in [(8, 0), (9, 0)] {
                for (name, source) in PROGRAM.kernels() {
                    let code = compile::compile(&nvrtc, &source, &options(numbers, capability));
                    let code = code.unwrap_or_else(|e| panic!("{name} {numbers:?}: {e}"));
                    assert!(code.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
                }
            }
        }
    }
}
