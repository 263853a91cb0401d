"""From calculations to training data: python convert.py OUTPUT FORMAT FOLDER

FORMAT is dpdata's name of what OUTPUT is: vasp/outcar, cp2k/output, and many more. FOLDER gets FOLDER/training and
FOLDER/validation, every tenth frame in the latter.
"""

import sys

import dpdata

output, form, folder = sys.argv[1:4]
frames = dpdata.LabeledSystem(output, fmt=form)
validation = list(range(0, len(frames), 10)) if len(frames) > 1 else []
training = [i for i in range(len(frames)) if i not in validation]
frames.sub_system(training).to("deepmd/npy", f"{folder}/training")
if validation:
    frames.sub_system(validation).to("deepmd/npy", f"{folder}/validation")
print(f"{len(training)} frames of {frames.get_natoms()} atoms for training, {len(validation)} for validation")
