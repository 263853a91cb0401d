//! `se_atten` (`dpa1`): one embedding net for all types, which enter by an embedding of their own, and attention between the neighbours.

use super::nets::{NetKind, NetPlan};
use super::*;
use crate::bail;
use crate::model::activation::Activation;
use crate::model::electrons::{SPIN_ORBITALS, check_elements};

/// The options of `se_atten` that most other descriptors do not have.
#[derive(Debug, Clone, PartialEq)]
pub struct SeAtten {
    /// Columns of the embedding that the descriptor is projected on.
    pub axis_neuron: usize,
    /// Numbers of the embedding of a type.
    pub tebd_dim: usize,
    /// Types enter by a net of their own, else as inputs beside s.
    pub strip: bool,
    /// Attention is switched off towards the cutoff, and so is the part of the types where they have a net of their own.
    pub smooth: bool,
    /// Width of the attention, and how often it is done.
    pub attn: usize,
    pub attn_layer: usize,
    /// Whether weights are multiplied by the product of the directions of two neighbours.
    pub attn_dotr: bool,
    /// Whether queries, keys and values have length 1.
    pub normalize: bool,
    /// What queries are multiplied by where it is given; else (attn scaling_factor)^(-1/2).
    pub temperature: Option<f64>,
    pub scaling_factor: f64,
    /// Kept in files; the normalisation is trained with the rest.
    pub trainable_ln: bool,
    pub ln_eps: f64,
    /// Whether the embedding of the centre's type is part of the descriptor.
    pub concat_output_tebd: bool,
    /// Types are given to their embedding as electron configurations, else by number.
    pub use_econf_tebd: bool,
    pub use_tebd_bias: bool,
}

pub const ENTRY: Entry = Entry::new(
    Variant::of("se_atten", KEYS, "Attention between the neighbours; types by an embedding")
        .aliases(&["dpa1"]),
    Descriptor {
        resolve: |section, shared| resolve(section, shared, mode(section)?, section.bool("smooth_type_embedding")).map(DescriptorKind::SeAtten),
        form,
        in_files: "dpa1",
        networks: "descriptor",
        statistics: "se_a",
        nets: Nets::Attention,
        write: |options| {
            let own = SeAtten::of(options);
            let mut keys = own.write();
            keys.push(("tebd_input_mode", if own.strip { "strip" } else { "concat" }.into()));
            keys.push(("smooth_type_embedding", own.smooth.into()));
            keys
        },
        read: |get, shared| {
            let mode = get("tebd_input_mode")?;
            let strip = match mode.as_str() {
                Some("concat") => false,
                Some("strip") => true,
                _ => bail!("tebd_input_mode: found {mode}, wanted \"concat\" or \"strip\""),
            };
            let Some(smooth) = get("smooth_type_embedding")?.as_bool() else { bail!("smooth_type_embedding: wanted true or false") };
            SeAtten::read(get, shared, strip, smooth).map(DescriptorKind::SeAtten)
        },
    },
);

const KEYS: &[Key] = &[
    SEL_OF_ALL,
    RCUT,
    RCUT_SMTH,
    NEURON,
    AXIS_NEURON,
    LMAX,
    ACTIVATION_FUNCTION,
    RESNET_DT,
    TYPE_BOTH,
    PRECISION,
    TRAINABLE,
    SEED,
    EXCLUDE_TYPES,
    ENV_PROTECTION,
    ATTN,
    ATTN_LAYER,
    ATTN_DOTR,
    ATTN_MASK,
    STRIPPED,
    Key::new("smooth_type_embedding", Kind::Bool)
        .aliases(&["smooth_type_embdding"])
        .default("false")
        .doc("Whether attention, and the part of the types in strip mode, are switched off towards the cutoff."),
    DAVG_ZERO,
    TRAINABLE_LN,
    LN_EPS,
    TEBD_DIM,
    USE_ECONF_TEBD,
    USE_TEBD_BIAS,
    Key::new("tebd_input_mode", Kind::choice(&["concat", "strip"])).default("\"concat\"").doc(
        "How types enter: as inputs of the embedding net beside the distance, or by a net of their own whose output scales that of the distance.",
    ),
    SCALING_FACTOR,
    NORMALIZE,
    TEMPERATURE,
    CONCAT_OUTPUT_TEBD,
];

// ---- Keys that `se_atten_v2` has too.

pub const SEL_OF_ALL: Key = Key::new(
    "sel",
    Kind::OneOf(&[
        SIZE,
        Kind::List(&SIZE),
        AUTO_SEL,
    ]),
)
.default("\"auto\"")
.doc(
    "Neighbours that an atom can have, of all types together, nearest first; more are left out. Of a list the sum counts. With \
     auto, the largest number in the data times the ratio (1.1), rounded up to a multiple of 4.",
);
pub const LMAX: Key = Key::new("lmax", Kind::Int(1, 4))
    .optional()
    .doc("Degree up to which directions enter. Only 1, the default, is supported yet.");
pub const TYPE_BOTH: Key = Key::new("type_one_side", Kind::Bool)
    .default("false")
    .doc("Whether only the type of the neighbour enters the embedding, not that of the centre too.");
pub const ATTN: Key =
    Key::new("attn", WIDTH).default("128").doc("Width of queries, keys and values of the attention.");
pub const ATTN_LAYER: Key =
    Key::new("attn_layer", Kind::Int(0, 100)).default("2").doc("How often attention is done; 0: never.");
pub const ATTN_DOTR: Key = Key::new("attn_dotr", Kind::Bool)
    .default("true")
    .doc("Whether the weights of attention are multiplied by the product of the directions of two neighbours.");
pub const ATTN_MASK: Key = Key::new("attn_mask", Kind::Bool)
    .default("false")
    .doc("Whether a neighbour pays no attention to itself. Only false, as in DeePMD-kit's PyTorch.");
pub const STRIPPED: Key = Key::new("stripped_type_embedding", Kind::Bool)
    .optional()
    .doc("An older name: true is tebd_input_mode \"strip\", false \"concat\".");
pub const DAVG_ZERO: Key = Key::new("set_davg_zero", Kind::Bool)
    .default("true")
    .doc("Whether the mean of the environment is taken as zero instead of measured.");
pub const TRAINABLE_LN: Key = Key::new("trainable_ln", Kind::Bool)
    .default("true")
    .doc("Taken and not used, as by DeePMD-kit's PyTorch: scale and shift after the normalisation of a layer are trained.");
pub const LN_EPS: Key = Key::new("ln_eps", Kind::POSITIVE)
    .optional()
    .doc("Added to the variance where a layer is normalised; absent: 1e-5.");
pub const TEBD_DIM: Key = Key::new("tebd_dim", WIDTH).default("8").doc("Numbers that a type is embedded in.");
pub const USE_ECONF_TEBD: Key = Key::new("use_econf_tebd", Kind::Bool)
    .default("false")
    .doc("Whether types are embedded by the electron configurations of their elements instead of their numbers.");
pub const USE_TEBD_BIAS: Key =
    Key::new("use_tebd_bias", Kind::Bool).default("false").doc("Whether the embedding of types has a bias.");
pub const SCALING_FACTOR: Key = Key::new("scaling_factor", Kind::POSITIVE)
    .default("1.0")
    .doc("Queries are multiplied by (attn scaling_factor)^(-1/2), unless there is a temperature.");
pub const NORMALIZE: Key = Key::new("normalize", Kind::Bool)
    .default("true")
    .doc("Whether queries, keys and values are brought to length 1.");
pub const TEMPERATURE: Key =
    Key::new("temperature", Kind::NUMBER).optional().doc("What queries are multiplied by.");
pub const CONCAT_OUTPUT_TEBD: Key = Key::new("concat_output_tebd", Kind::Bool)
    .default("true")
    .doc("Whether the embedding of the centre's type is part of the descriptor.");

/// What engines compute of either.
pub fn form(options: &DescriptorOptions) -> Form {
    let own = options.attention().expect("an entry is asked about its own descriptor");
    Form::Attention { axis: own.axis_neuron, tail: if own.concat_output_tebd { own.tebd_dim } else { 0 } }
}

/// Whether types have a net of their own.
fn mode(section: &Section) -> Result<bool> {
    let strip = section.text("tebd_input_mode") == "strip";
    match section.get("stripped_type_embedding").and_then(Value::as_bool) {
        Some(false) if strip => Err(section
            .error("stripped_type_embedding", err!("found false beside tebd_input_mode \"strip\""))
            .help("it is an older name of tebd_input_mode: leave it away")),
        Some(stripped) => Ok(stripped),
        None => Ok(strip),
    }
}

/// The options of either from a checked section.
pub fn resolve(section: &Section, shared: &Shared, strip: bool, smooth: bool) -> Result<SeAtten> {
    let axis_neuron: usize = section.int("axis_neuron");
    let last = shared.neuron[shared.neuron.len() - 1];
    if axis_neuron > last {
        let error = err!("{axis_neuron} is more than the last width {last} of neuron");
        return Err(section.error("axis_neuron", error).help("it selects columns of the last layer"));
    }
    if let Some(lmax) = section.optional_int::<usize>("lmax").filter(|&lmax| lmax != 1) {
        return Err(section.error("lmax", err!("DeePMD-kit knows {lmax}, Phalanx supports 1 only")));
    }
    if section.bool("attn_mask") {
        let error = err!("true is not supported, here as in DeePMD-kit's PyTorch");
        return Err(section.error("attn_mask", error));
    }
    let own = SeAtten {
        axis_neuron,
        tebd_dim: section.int("tebd_dim"),
        strip,
        smooth,
        attn: section.int("attn"),
        attn_layer: section.int("attn_layer"),
        attn_dotr: section.bool("attn_dotr"),
        normalize: section.bool("normalize"),
        temperature: section.optional_float("temperature"),
        scaling_factor: section.float("scaling_factor"),
        trainable_ln: section.bool("trainable_ln"),
        ln_eps: section.optional_float("ln_eps").unwrap_or(LAYER_EPS),
        concat_output_tebd: section.bool("concat_output_tebd"),
        use_econf_tebd: section.bool("use_econf_tebd"),
        use_tebd_bias: section.bool("use_tebd_bias"),
    };
    if own.use_econf_tebd {
        check_elements(shared.type_map).map_err(|e| section.error("use_econf_tebd", e))?;
    }
    Ok(own)
}

/// What is added to a variance unless the input says otherwise.
const LAYER_EPS: f64 = 1e-5;

impl SeAtten {
    /// Its nets in the order in which DeePMD-kit makes them, which is that of the flat vector: those of the attention layers
    /// ([`AttentionNets`](crate::model::dp::AttentionNets)), that of distances, that of types in strip mode, the embedding of types.
    pub fn nets(&self, options: &DescriptorOptions, prefix: &str, n_types: usize) -> Vec<NetPlan> {
        let width = options.neuron.last().copied().unwrap_or(0);
        let block = format!("{prefix}.se_atten");
        let chain = |name: String, n_in: usize, seeds: Vec<u64>| NetPlan {
            name,
            kind: NetKind::Chain,
            n_in,
            neuron: options.neuron.clone(),
            activation: options.activation,
            resnet_dt: options.resnet_dt,
            bias: true,
            linear_end: false,
            trainable: options.trainable,
            seeds,
            place: 0,
        };
        let mut nets = Vec::with_capacity(self.n_nets());
        for i in 0..self.attn_layer as u64 {
            let layer = format!("{block}.dpa1_attention.attention_layers.{i}");
            // DeePMD-kit's PyTorch trains the normalisation whatever `trainable_ln` says.
            let single = |name: &str, kind, n_in, n_out, seeds: &[u64]| NetPlan {
                kind,
                neuron: vec![n_out],
                activation: Activation::None,
                resnet_dt: false,
                ..chain(format!("{layer}.{name}"), n_in, [seeds, &[i, 0, 1]].concat())
            };
            nets.push(single("attention_layer.in_proj", NetKind::Layer, width, 3 * self.attn, &[0, 0]));
            nets.push(single("attention_layer.out_proj", NetKind::Layer, self.attn, width, &[1, 0]));
            nets.push(single("attn_layer_norm", NetKind::Norm, 1, width, &[1]));
        }
        let types = self.tebd_dim * if options.type_one_side { 1 } else { 2 };
        let n_in = if self.strip { 1 } else { 1 + types };
        nets.push(chain(format!("{block}.filter_layers.networks.0"), n_in, vec![1, 1]));
        if self.strip {
            nets.push(chain(format!("{block}.filter_layers_strip.networks.0"), types, vec![2, 1]));
        }
        let name = format!("{prefix}.type_embedding.embedding.embedding_net");
        nets.push(NetPlan {
            neuron: vec![self.tebd_dim],
            activation: Activation::Linear,
            resnet_dt: false,
            bias: self.use_tebd_bias,
            ..chain(name, if self.use_econf_tebd { SPIN_ORBITALS } else { n_types }, vec![2])
        });
        nets.iter_mut().enumerate().for_each(|(place, net)| net.place = place);
        nets
    }

    pub fn n_nets(&self) -> usize {
        3 * self.attn_layer + 2 + usize::from(self.strip)
    }

    /// What queries are multiplied by.
    pub fn scaling(&self) -> f64 {
        self.temperature.unwrap_or(1.0 / (self.attn as f64 * self.scaling_factor).sqrt())
    }

    /// The keys of a model file that are its own, but for those of its mode.
    pub fn write(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("axis_neuron", self.axis_neuron.into()),
            ("tebd_dim", self.tebd_dim.into()),
            ("attn", self.attn.into()),
            ("attn_layer", self.attn_layer.into()),
            ("attn_dotr", self.attn_dotr.into()),
            ("attn_mask", false.into()),
            ("scaling_factor", self.scaling_factor.into()),
            ("normalize", self.normalize.into()),
            ("temperature", self.temperature.into()),
            ("trainable_ln", self.trainable_ln.into()),
            ("ln_eps", self.ln_eps.into()),
            ("concat_output_tebd", self.concat_output_tebd.into()),
            ("use_econf_tebd", self.use_econf_tebd.into()),
            ("use_tebd_bias", self.use_tebd_bias.into()),
        ]
    }

    /// The same, read.
    pub fn read(get: Get, shared: &Shared, strip: bool, smooth: bool) -> Result<SeAtten> {
        let wrong = |key: &str, found: Value, wanted: &str| err!("{key}: found {found}, wanted {wanted}");
        let size = |key: &str, least: u64, most: u64| {
            let found = get(key)?;
            match found.as_u64() {
                Some(n) if (least..=most).contains(&n) => Ok(n as usize),
                _ => Err(wrong(key, found, &format!("an integer from {least} to {most}"))),
            }
        };
        let flag = |key: &str| {
            let found = get(key)?;
            found.as_bool().ok_or_else(|| wrong(key, found.clone(), "true or false"))
        };
        let number = |key: &str| {
            let found = get(key)?;
            found.as_f64().filter(|x| x.is_finite()).ok_or_else(|| wrong(key, found.clone(), "a number"))
        };
        if flag("attn_mask")? {
            bail!("attn_mask: true is not supported");
        }
        let own = SeAtten {
            axis_neuron: size("axis_neuron", 1, shared.neuron.last().map_or(0, |&n| n as u64))?,
            tebd_dim: size("tebd_dim", 1, 1 << 16)?,
            strip,
            smooth,
            attn: size("attn", 1, 1 << 16)?,
            attn_layer: size("attn_layer", 0, 1 << 10)?,
            attn_dotr: flag("attn_dotr")?,
            normalize: flag("normalize")?,
            temperature: if get("temperature")?.is_null() { None } else { Some(number("temperature")?) },
            scaling_factor: number("scaling_factor")?,
            trainable_ln: flag("trainable_ln")?,
            ln_eps: if get("ln_eps")?.is_null() { LAYER_EPS } else { number("ln_eps")? },
            concat_output_tebd: flag("concat_output_tebd")?,
            use_econf_tebd: flag("use_econf_tebd")?,
            use_tebd_bias: flag("use_tebd_bias")?,
        };
        if own.use_econf_tebd {
            check_elements(shared.type_map)?;
        }
        Ok(own)
    }
}
