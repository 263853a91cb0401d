#!/usr/bin/env python3
"""Writes frames of eight water molecules in a cube of 6.2 A, with random labels: tools/pinn_frames.py FILE COUNT"""
import math
import random
import sys

SIDE = 6.2
path, count = sys.argv[1], int(sys.argv[2])
random.seed(1)
with open(path, "w") as out:
    for _ in range(count):
        energy = random.uniform(-1, 1)
        print(f'24\nLattice="{SIDE} 0 0 0 {SIDE} 0 0 0 {SIDE}" Properties=species:S:1:pos:R:3:forces:R:3 energy={energy} pbc="T T T"', file=out)
        for m in range(8):
            center = [(c + 0.5) * SIDE / 2 + random.uniform(-0.4, 0.4) for c in (m // 4, m // 2 % 2, m % 2)]
            atoms = [("O", center)]
            for _ in range(2):
                v = [random.gauss(0, 1) for _ in range(3)]
                r = math.sqrt(sum(x * x for x in v))
                atoms.append(("H", [c + 0.97 * x / r for c, x in zip(center, v)]))
            for name, x in atoms:
                print(name, *x, *(random.uniform(-1, 1) for _ in range(3)), file=out)
