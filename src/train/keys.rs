//! The keys of the `training` section and of the whole input.

use crate::config::table::{Choice, Key, Kind, Pattern, Table};
use crate::loss::LOSS;
use crate::model::dp::options::MODEL;
use crate::optim::options::{LEARNING_RATE, OPTIMIZER};
use crate::train::input::{parse_auto_prob, parse_batch_size};

/// The keys of the whole input.
pub static INPUT: Table = Table::of(&[
    Key::new("model", Kind::Object(&MODEL)).doc("What is trained."),
    Key::new("learning_rate", Kind::Object(&LEARNING_RATE))
        .doc("How the learning rate changes during the run."),
    Key::new("optimizer", Kind::Object(&OPTIMIZER))
        .defaults_inside()
        .doc("How gradients change the parameters."),
    Key::new("loss", Kind::Object(&LOSS)).defaults_inside().doc("What is minimised."),
    Key::new("training", Kind::Object(&TRAINING)).doc("Data, length of the run, files."),
    Key::new("validating", Kind::Object(&VALIDATING))
        .defaults_inside()
        .doc("Validation over the whole validation set, apart from the lines of the learning curve."),
    Key::new("nvnmd", Kind::Any).optional().not_yet("").doc("Models for the NVNMD hardware."),
    Key::new("loss_dict", Kind::Any)
        .optional()
        .doc("In place of loss in a multi-task training: the loss of each branch, by its name."),
]);

static TRAINING: Table = Table::of(&[
    Key::new("training_data", Kind::Object(&TRAINING_DATA)).doc("The data that the model learns."),
    Key::new("validation_data", Kind::OneOf(&[Kind::Object(&VALIDATION_DATA), Kind::Null]))
        .default("null")
        .doc("Data that the model does not learn, for the learning curve."),
    Key::new("stat_file", Kind::OneOf(&[Kind::Text, Kind::Null]))
        .optional()
        .doc("Where statistics of the data are kept for the next run: an .hdf5 file or a folder."),
    Key::new("stat_file_mode", Kind::Choice(Choice { known: &["update"], not_yet: &["read"] }))
        .default("\"update\"")
        .doc("Whether missing statistics are added to stat_file."),
    Key::new("model_prob", Kind::Any)
        .optional()
        .doc(
            "How often each branch of a multi-task training is drawn: a weight for each, by its name. Absent: by the number of its \
             systems.",
        ),
    Key::new("num_epoch_dict", Kind::Any)
        .optional()
        .doc(
            "In place of model_prob and numb_steps in a multi-task training: how often each branch sees its data, by its name.",
        ),
    Key::new("data_dict", Kind::Any).optional().doc(
        "In a multi-task training: training_data, validation_data and stat_file of each branch, by its name.",
    ),
    Key::new("mixed_precision", Kind::Object(&MIXED_PRECISION)).optional().doc(
        "Products of float32 networks with factors of bfloat16 on a GPU: as gpu_products \"bf16\".",
    ),
    Key::new("numb_steps", Kind::AT_LEAST_ONE)
        .aliases(&["stop_batch", "num_step", "num_steps", "numb_step"])
        .optional()
        .unit("steps")
        .doc("Length of the run. Either this or numb_epoch is given."),
    Key::new("numb_epoch", Kind::POSITIVE)
        .aliases(&["num_epochs", "num_epoch", "numb_epochs"])
        .optional()
        .unit("epochs")
        .doc("Length of the run in passes through the training data, which may be a fraction."),
    Key::new("seed", Kind::SEED)
        .optional()
        .doc("Seed of the order of the data. Absent: taken at random, and written to out.json and the log."),
    Key::new("disp_file", Kind::Text).default("\"lcurve.out\"").doc("The file of the learning curve."),
    Key::new("disp_freq", Kind::AT_LEAST_ONE)
        .default("1000")
        .unit("steps")
        .doc("Steps between lines of the learning curve."),
    Key::new("save_freq", Kind::AT_LEAST_ONE).default("1000").unit("steps").doc("Steps between checkpoints."),
    Key::new("save_dir", Kind::OneOf(&[Kind::Text, Kind::Null]))
        .default("null")
        .doc("The folder of checkpoints, in which save_ckpt lies then."),
    Key::new("save_ckpt", Kind::Text)
        .default("\"model.ckpt\"")
        .doc("What the names of checkpoints start with."),
    Key::new("max_ckpt_keep", Kind::AT_LEAST_ONE)
        .default("5")
        .doc("Checkpoints that are kept; older ones are removed."),
    Key::new("ckpt_keep_ratio", Kind::OneOf(&[Kind::float(0.0, false, 1.0, false), Kind::Null]))
        .default("null")
        .doc("Checkpoints that are kept, as a part of all that are saved; in place of max_ckpt_keep and ema_ckpt_keep."),
    Key::new("enable_ema", Kind::Bool).default("false").doc(
        "Whether a running mean of the parameters is kept and saved too, as model_ema.ckpt where save_ckpt is model.ckpt.",
    ),
    Key::new("ema_decay", Kind::float(0.0, true, 1.0, false))
        .default("0.999")
        .doc("What is left of the mean after a step; the rest is of the new parameters. Only used with enable_ema."),
    Key::new("ema_ckpt_keep", Kind::OneOf(&[Kind::AT_LEAST_ONE, Kind::Null]))
        .default("null")
        .doc("Checkpoints of the mean that are kept; null: max_ckpt_keep. Only used with enable_ema."),
    Key::new("early_stopping", Kind::OneOf(&[Kind::Object(&EARLY_STOPPING), Kind::Null])).default("null").doc(
        "Phalanx only. Ends the run when full validations have stopped to improve.",
    ),
    Key::new("change_bias_after_training", Kind::Bool).default("false").doc(
        "Whether the energy bias is shifted after the last step by what the model leaves unexplained of the frames that the \
         statistics looked at.",
    ),
    Key::new("disp_training", Kind::Bool).default("true").doc("Whether the learning curve is written."),
    Key::new("time_training", Kind::Bool).default("true").doc("Whether log lines tell the time."),
    Key::new("disp_avg", Kind::Bool)
        .default("false")
        .doc(
            "Whether training errors in the learning curve are means over the steps since the line before, or since a restart. On a \
             GPU the host then waits for every step.",
        ),
    Key::new("profiling", Kind::Bool)
        .default("false")
        .doc("Whether the times of the parts of a step are written down."),
    Key::new("profiling_file", Kind::Text).default("\"timeline.json\"").doc("The file of these times."),
    Key::new("enable_profiler", Kind::Bool)
        .default("false")
        .not_yet("training.profiling writes a timeline")
        .doc("A profile for TensorBoard."),
    Key::new("tensorboard", Kind::Bool).default("false").doc("Whether events for TensorBoard are written."),
    Key::new("tensorboard_log_dir", Kind::Text).default("\"log\"").doc("The folder of these events."),
    Key::new("tensorboard_freq", Kind::AT_LEAST_ONE).default("1").unit("steps").doc("Steps between events."),
    Key::new("gradient_max_norm", Kind::NOT_NEGATIVE)
        .optional()
        .doc("Gradients with a larger norm are scaled down to it. Absent or 0: never."),
    Key::new("acc_freq", Kind::AT_LEAST_ONE)
        .default("1")
        .not_yet(
            "DeePMD-kit's Paddle backend alone has it, and counts every batch as a step there; training.gradient_accumulation adds \
             up gradients for one step",
        )
        .doc("Steps between updates of the parameters."),
    Key::new("zero_stage", Kind::Int(0, 3))
        .default("0")
        .ignored("no effect: every rank holds all parameters, which are small")
        .doc("How PyTorch shares memory over ranks."),
    Key::new("neighbor_graph_method", Kind::Text)
        .default("\"auto\"")
        .ignored("")
        .doc("A choice inside PyTorch."),
    Key::new("enable_compile", Kind::Bool).default("false").ignored("").doc("A choice inside PyTorch."),
    Key::new("enable_tf32", Kind::Bool)
        .default("false")
        .ignored("no effect: products keep the precision of the networks")
        .doc("A choice inside PyTorch."),
    Key::new("resume", Kind::choice(&["never", "auto"])).default("\"never\"").doc(
        "Phalanx only. \"auto\": a run goes on from the newest complete checkpoint of save_ckpt, or begins where there is none.",
    ),
    Key::new("keep_global_batch", Kind::Bool).default("false").doc(
        "Phalanx only. Whether a run that continues on another number of ranks keeps its batches a step: \
         gradient_accumulation is set to match.",
    ),
    Key::new("backup", Kind::Bool).default("true").doc(
        "Phalanx only. Whether a new run first moves the learning curve and checkpoints of an earlier one to a folder backup-N.",
    ),
    Key::new("gradient_accumulation", Kind::AT_LEAST_ONE)
        .default("1")
        .doc("Phalanx only. Batches whose gradients a rank adds up for one step."),
    Key::new("ranks_per_frame", Kind::OneOf(&[Kind::AT_LEAST_ONE, Kind::choice(&["all"])])).default("1").doc(
        "Phalanx only. Ranks in a row that work on one batch together, each on blocks of space of its frames: a number that divides \
         that of all ranks, or \"all\". A step then has as many batches as there are such groups.",
    ),
    Key::new("reproducible", Kind::Bool)
        .default("false")
        .doc("Phalanx only. Whether results are the same bit for bit for every number of ranks and threads."),
    Key::new("geometry_cache", Kind::NOT_NEGATIVE)
        .default("160")
        .unit("MB")
        .doc(
            "Phalanx only. Memory for prepared frames, which then need not be prepared again. A frame grows beyond what was \
             counted when the embedding series gets more terms.",
        ),
    Key::new("gpu_memory", Kind::POSITIVE).default("0.6").doc(
        "Phalanx only. Part of the free memory of a GPU in which frames stay; those beyond it are copied again and again.",
    ),
    Key::new("gpu_products", Kind::choice(&["full", "tf32", "bf16"])).default("\"full\"").doc(
        "Phalanx only. How matrix products of float32 networks are made on a GPU: \"full\" keeps the precision of float32, \
         \"tf32\" rounds factors to ten bits and \"bf16\" to seven, which is faster.",
    ),
    Key::new("stall_timeout", Kind::POSITIVE).default("60").unit("s").doc(
        "Phalanx only. A rank that is not heard of for so long ends the run with an error that names it.",
    ),
]);

static MIXED_PRECISION: Table = Table::of(&[
    Key::new("output_prec", Kind::choice(&["float32"]))
        .default("\"float32\"")
        .doc("The precision of parameters and sums."),
    Key::new("compute_prec", Kind::Choice(Choice { known: &["bfloat16"], not_yet: &["float16"] }))
        .doc("The precision of the factors of products."),
]);

static EARLY_STOPPING: Table = Table::of(&[Key::new("patience", Kind::AT_LEAST_ONE)
    .unit("validations")
    .doc("Full validations without a new best one after which the run ends.")]);

const SYSTEMS: Key = Key::new("systems", Kind::OneOf(&[Kind::Text, Kind::List(&Kind::Text)]))
    .doc("Folders with data: a list of systems, or one system or folder that is searched for systems.");
const PATTERNS: Key = Key::new("rglob_patterns", Kind::OneOf(&[Kind::List(&Kind::Text), Kind::Null]))
    .aliases(&["patterns"])
    .default("null")
    .doc("In a folder that is searched, only systems whose path matches one of these patterns.");
const BATCH_SIZE: Key = Key::new(
    "batch_size",
    Kind::OneOf(&[
        Kind::AT_LEAST_ONE,
        Kind::List(&Kind::AT_LEAST_ONE),
        Kind::Pattern(Pattern {
            wanted: "\"auto\", \"auto:N\", \"max:N\", \"filter:N\", \"mixed:N\" or \"mix:N\"",
            check: |text| parse_batch_size(text).map(|_| ()),
        }),
    ]),
)
.default("\"auto\"")
.unit("frames")
.doc(
    "Frames of a batch, for each rank: one number, one for each system, \"auto:N\" for the fewest frames with at \
     least N atoms (auto: 32), \"max:N\" for the most with at most N atoms, \"filter:N\" for the same without \
     systems of more than N atoms. Batches of frames of all systems, each drawn by itself: \"mixed:N\" for N frames, \"mix:N\" for \
     as many as have at most N atoms together.",
);
const AUTO_PROB: Key = Key::new(
    "auto_prob",
    Kind::Pattern(Pattern {
        wanted: "\"prob_uniform\", \"prob_sys_size\" or \"prob_sys_size;BEGIN:END:WEIGHT;...\"",
        check: |text| parse_auto_prob(text).map(|_| ()),
    }),
)
.aliases(&["auto_prob_style"])
.default("\"prob_sys_size\"")
.doc(
    "How likely a system is drawn: all alike, by its number of batches, or by blocks of systems from BEGIN up to, \
     not including, END that share a weight.",
);
const SYS_PROBS: Key = Key::new("sys_probs", Kind::OneOf(&[Kind::List(&Kind::NUMBER), Kind::Null]))
    .aliases(&["sys_weights"])
    .default("null")
    .doc("How likely each system is drawn. A negative number shares what the others leave by the number of batches.");
const SET_PREFIX: Key = Key::new("set_prefix", Kind::Any)
    .optional()
    .ignored("no effect since DeePMD-kit 2: sets are the folders set.*")
    .doc("What the names of sets start with.");

static TRAINING_DATA: Table = Table::of(&[
    SYSTEMS,
    PATTERNS,
    BATCH_SIZE,
    AUTO_PROB,
    SYS_PROBS,
    Key::new("min_pair_dist", Kind::NOT_NEGATIVE)
        .default("0.0")
        .unit("A")
        .doc("Frames with atoms closer than this are left out of training and statistics."),
    SET_PREFIX,
]);

static VALIDATION_DATA: Table = Table::of(&[
    SYSTEMS,
    PATTERNS,
    BATCH_SIZE,
    AUTO_PROB,
    SYS_PROBS,
    Key::new("numb_btch", Kind::AT_LEAST_ONE)
        .aliases(&["numb_batch"])
        .default("1")
        .doc("Batches that a line of the learning curve is the mean of."),
    SET_PREFIX,
]);

static VALIDATING: Table = Table::of(&[
    Key::new("full_validation", Kind::Bool).default("false").doc("Whether it is done."),
    Key::new("ema_full_validation", Kind::Bool)
        .default("false")
        .doc("Whether it is done for the running mean of the parameters, with a log and best checkpoints of its own."),
    Key::new("validation_freq", Kind::AT_LEAST_ONE).default("5000").unit("steps").doc("Steps between validations."),
    Key::new("save_best", Kind::Bool)
        .default("true")
        .doc("Whether the best so far is saved, as best.ckpt-STEP.t-RANK: with RANK 1 the best of all."),
    Key::new("save_best_dir", Kind::OneOf(&[Kind::Text, Kind::Null]))
        .default("null")
        .doc("The folder of the best; null: that of save_ckpt."),
    Key::new("max_best_ckpt", Kind::AT_LEAST_ONE).default("1").doc("How many of the best are kept."),
    Key::new("validation_metric", Kind::Text)
        .default("\"E:MAE\"")
        .doc("What is best: E:MAE, E:RMSE, F:MAE, F:RMSE, S:MAE, S:RMSE, V:MAE or V:RMSE, for energy, force, stress and virial."),
    Key::new("full_val_file", Kind::Text).default("\"val.log\"").doc("The file of all errors."),
    Key::new("full_val_start", Kind::NOT_NEGATIVE)
        .default("0.5")
        .doc("The first validation: a part of all steps where below 1, else a step; 1: never."),
    Key::new("compiled_infer", Kind::Bool).default("false").ignored("").doc("A choice inside PyTorch."),
    Key::new("tf32_infer", Kind::Bool).default("false").ignored("").doc("A choice inside PyTorch."),
    Key::new("amp_infer", Kind::Bool).default("false").ignored("").doc("A choice inside PyTorch."),
]);
