# dp and pinn in an image with Open MPI. For GPUs run it with the NVIDIA container runtime: driver, CUDA and NCCL are found at run time.
#
#   docker build -t phalanx .
#   docker run --rm -v "$PWD:/work" phalanx train input.json
#   docker run --rm --gpus all -v "$PWD:/work" phalanx train input.json
#   docker run --rm -v "$PWD:/work" --entrypoint mpirun phalanx -np 4 dp train input.json

FROM rust:1-bookworm AS build
COPY . /src
WORKDIR /src
RUN cargo build --release --locked -p phalanx -p phalanx-capi

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin openssh-client && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/dp /src/target/release/pinn /src/target/release/phalanx /usr/local/bin/
COPY --from=build /src/target/release/libdeepmd_c.so /usr/local/lib/
# Nobody but root is known inside, and Open MPI asks whether that is meant.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
WORKDIR /work
ENTRYPOINT ["dp"]
