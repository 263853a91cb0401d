"""What an all-reduce costs over torch.distributed's own Gloo backend: 1.0 M and 8 float64, as `launchers -- timings` does it.

torchrun --nproc_per_node=2 tools/bench_torch_gloo.py
"""

import statistics
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
x = torch.full((1_000_000,), 1e-9, dtype=torch.float64)


def median_of(n, numbers):
    times = []
    for _ in range(n):
        if numbers.numel() > 8:
            dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(numbers)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


long, short = median_of(60, x), median_of(300, x[:8])
if dist.get_rank() == 0:
    print(f"torch.distributed, gloo: 1.0 M f64: median {1e3 * long:.2f} ms; 8 f64: median {1e6 * short:.1f} us")
dist.destroy_process_group()
