//! The keys of every block of params.yml. Defaults are PiNN's.

use crate::config::{Key, Kind, Table};

const WIDTH: Kind = Kind::Int(1, 100_000);
const WIDTHS: Kind = Kind::List(&WIDTH);

const MODEL_DIR: Key = Key::new("model_dir", Kind::Text)
    .default("\"model\"")
    .doc("The folder of params.yml, checkpoints and events.");
const PARALLEL: Key =
    Key::new("parallel", Kind::Bool).default("false").doc("Whether the run is meant for several processes.");
const PRECISION: Key = Key::new("precision", Kind::choice(&["float32", "float64"]))
    .default("\"float32\"")
    .doc("Phalanx only. Number type of the network.");
const SEED: Key = Key::new("seed", Kind::Int(0, u64::MAX as i128))
    .default("1")
    .doc("Phalanx only. Seed of the initial parameters and of the order of the data.");
const RANKS_PER_FRAME: Key = Key::new("ranks_per_frame", Kind::Int(1, 1)).optional().doc(
    "Phalanx only. Always 1: the atoms of a PiNet pass messages to each other, so that ranks do not share a structure.",
);

/// The top of a file: of the newer style, and of the fork's.
pub static TOP: [Table; 2] = [
    Table::of(&[
        MODEL_DIR,
        Key::new("model", Kind::Object(&NAMED)).doc("Name and parameters of the model."),
        Key::new("network", Kind::Object(&NAMED)).doc("Name and parameters of the network."),
        Key::new("optimizer", Kind::OneOf(&[Kind::Object(&KERAS), Kind::Text, Kind::Null]))
            .optional()
            .doc("A Keras optimiser: class_name and config."),
        PARALLEL,
        PRECISION,
        SEED,
        RANKS_PER_FRAME,
    ]),
    Table::of(&[
        MODEL_DIR,
        Key::new("model", Kind::Text).default("\"potential_model\"").doc("potential_model or dipole_model."),
        Key::new("network", Kind::Text).doc("Name of the network: pinet."),
        Key::new("network_params", Kind::Any).default("{}").doc("Parameters of the network."),
        Key::new("model_params", Kind::Any).default("{}").doc("Parameters of the model and the optimiser."),
        PARALLEL,
        PRECISION,
        SEED,
        RANKS_PER_FRAME,
    ]),
];

static NAMED: Table = Table::of(&[
    Key::new("name", Kind::Text).doc("Which one."),
    Key::new("params", Kind::Any).default("{}").doc("Its parameters."),
]);

/// A Keras object: what it is, and its configuration.
pub static KERAS: Table = Table::of(&[
    Key::new("class_name", Kind::Text).doc("Such as Adam or ExponentialDecay."),
    Key::new("config", Kind::Any).default("{}").doc("Its arguments."),
    Key::new("module", Kind::Any).optional(),
    Key::new("registered_name", Kind::Any).optional(),
]);

/// The `network` block of PiNet and of PiNet2.
pub static NETWORK: [Table; 2] = [
    Table::of(&[Key::new("network", Kind::Object(&PINET_BLOCK))]),
    Table::of(&[Key::new("network", Kind::Object(&PINET2_BLOCK))]),
];

static PINET_BLOCK: Table =
    Table::of(&[Key::new("name", Kind::Text), Key::new("params", Kind::Object(&PINET)).defaults_inside()]);
static PINET2_BLOCK: Table =
    Table::of(&[Key::new("name", Kind::Text), Key::new("params", Kind::Object(&PINET2)).defaults_inside()]);

/// `network_params` of the fork.
pub static NETWORK_PARAMS: Table =
    Table::of(&[Key::new("network_params", Kind::Object(&FORK_PINET)).defaults_inside()]);

const ATOM_TYPES: Key =
    Key::new("atom_types", Kind::List(&Kind::Int(1, 118))).default("[1,6,7,8]").doc("Atomic numbers.");
const RC: Key = Key::new("rc", Kind::POSITIVE).default("4.0").unit("A").doc("Pairs beyond are not seen.");
const CUTOFF_TYPE: Key = Key::new("cutoff_type", Kind::choice(&["f1", "f2", "hip"])).default("\"f1\"");
const BASIS_TYPE: Key =
    Key::new("basis_type", Kind::choice(&["polynomial", "gaussian"])).default("\"polynomial\"");
const N_BASIS: Key = Key::new("n_basis", Kind::OneOf(&[Kind::Int(1, 10_000), Kind::List(&Kind::POSITIVE)]))
    .default("4")
    .doc("The number of radial functions, or the powers of a polynomial basis.");
const GAMMA: Key = Key::new("gamma", Kind::OneOf(&[Kind::POSITIVE, Kind::List(&Kind::POSITIVE)]))
    .default("3.0")
    .unit("1/A^2")
    .doc("Width of the Gaussians.");
const CENTER: Key = Key::new("center", Kind::OneOf(&[Kind::List(&Kind::NOT_NEGATIVE), Kind::Null]))
    .default("null")
    .unit("A")
    .doc("Centers of the Gaussians; null: evenly from 0 to rc.");
const PP_NODES: Key = Key::new("pp_nodes", WIDTHS).default("[16,16]");
const PI_NODES: Key = Key::new("pi_nodes", WIDTHS).default("[16,16]");
const II_NODES: Key = Key::new("ii_nodes", WIDTHS).default("[16,16]");
const OUT_NODES: Key = Key::new("out_nodes", WIDTHS).default("[16,16]");
const OUT_UNITS: Key = Key::new("out_units", WIDTH).default("1");
const OUT_POOL: Key =
    Key::new("out_pool", Kind::OneOf(&[Kind::Bool, Kind::choice(&["sum", "max", "min", "avg"])]))
        .default("false");
const DEPTH: Key = Key::new("depth", Kind::Int(1, 1000)).default("4").doc("The number of blocks.");
const ACT: Key =
    Key::new("act", Kind::Text).default("\"tanh\"").doc("An activation function by its Keras name.");

static PINET: Table = Table::of(&[
    ATOM_TYPES,
    RC,
    CUTOFF_TYPE,
    BASIS_TYPE,
    N_BASIS,
    GAMMA,
    CENTER,
    PP_NODES,
    PI_NODES,
    II_NODES,
    OUT_NODES,
    OUT_UNITS,
    OUT_POOL,
    DEPTH,
    ACT,
]);

static PINET2: Table = Table::of(&[
    ATOM_TYPES,
    RC,
    CUTOFF_TYPE,
    BASIS_TYPE,
    N_BASIS,
    GAMMA,
    CENTER,
    PP_NODES,
    PI_NODES,
    II_NODES,
    OUT_NODES,
    OUT_UNITS,
    OUT_POOL,
    DEPTH,
    ACT,
    Key::new("rank", Kind::Int(1, 5)).default("3").doc("1, 3 or 5."),
    Key::new("weighted", Kind::Bool).default("false"),
    Key::new("out_extra", Kind::Any).default("{}").doc("Further outputs by tensor, with their width."),
]);

static FORK_PINET: Table = Table::of(&[
    ATOM_TYPES,
    RC,
    CUTOFF_TYPE,
    BASIS_TYPE,
    N_BASIS,
    GAMMA,
    PP_NODES,
    PI_NODES,
    II_NODES,
    Key::new("en_nodes", WIDTHS).default("[16,16]"),
    DEPTH,
    ACT,
    Key::new("preprocess", Kind::Bool).default("false").ignored(""),
]);
