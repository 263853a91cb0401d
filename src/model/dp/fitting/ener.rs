//! `ener`: the energy of an atom, with forces and virials as its derivatives.

use super::*;

/// The options of `ener` that no other fitting net has are among [`FittingOptions`].
#[derive(Debug, Clone, PartialEq)]
pub struct Ener;

pub const ENTRY: Entry = Entry::new(
    Variant::of("ener", KEYS, "The energy of an atom"),
    FittingNet {
        resolve,
        output: |_| Output { name: "energy".into(), width: 1, made: Made::Itself, is_intensive: false, applied: Applied::Bias },
        version: 4,
        write: |options| vec![("dim_out", 1.into()), ("atom_ener", options.atom_ener.clone().into())],
        section: |options| {
            vec![
                ("rcond", options.rcond.into()),
                ("use_aparam_as_mask", options.use_aparam_as_mask.into()),
                ("atom_ener", options.atom_ener.clone().into()),
            ]
        },
        read: |_| Ok(FittingKind::Ener(Ener)),
    },
);

const KEYS: &[Key] = &[
    NUMB_FPARAM,
    NUMB_APARAM,
    DEFAULT_FPARAM,
    DIM_CASE_EMBD,
    NEURON.aliases(&["n_neuron"]),
    ACTIVATION_FUNCTION,
    PRECISION,
    RESNET_DT,
    TRAINABLE,
    RCOND,
    SEED,
    Key::new("atom_ener", Kind::List(&Kind::OneOf(&[Kind::NUMBER, Kind::Null])))
        .default("[]")
        .unit("eV")
        .doc("Energy of an isolated atom of each type, or null; the net then vanishes without neighbours."),
    Key::new("layer_name", Kind::OneOf(&[Kind::List(&Kind::OneOf(&[Kind::Text, Kind::Null])), Kind::Null]))
        .optional()
        .doc(
            "Names of the layers or null, one for each of neuron and one for the output. Layers of one name share their parameters in \
             DeePMD-kit's TensorFlow; here no name may stand twice, and one that stands once does nothing.",
        ),
    Key::new("use_aparam_as_mask", Kind::Bool)
        .default("false")
        .doc("Whether parameters of atoms are kept from the net: DeePMD-kit's PyTorch reads them and does no more."),
];

fn resolve(section: &Section, options: &mut FittingOptions, n_types: usize) -> Result<FittingKind> {
    let atom_ener: Vec<Option<f64>> = section.list("atom_ener").iter().map(Value::as_f64).collect();
    if !atom_ener.is_empty() && atom_ener.len() != n_types {
        let error =
            err!("{} for the {} of type_map", count(atom_ener.len(), "number"), count(n_types, "type"));
        return Err(section
            .error("atom_ener", error)
            .help("write null for a type whose energy is not given"));
    }
    check_layer_names(section, options.neuron.len() + 1)?;
    options.atom_ener = atom_ener;
    options.use_aparam_as_mask = section.bool("use_aparam_as_mask");
    options.rcond = section.optional_float("rcond");
    Ok(FittingKind::Ener(Ener))
}

/// Refuses names of layers that do not fit the net, or share parameters within it.
fn check_layer_names(section: &Section, n_layers: usize) -> Result<()> {
    let key = "layer_name";
    let Some(names) = section.optional_list(key) else { return Ok(()) };
    if names.len() != n_layers {
        let error = err!("{} for {n_layers} layers", count(names.len(), "name"));
        return Err(section.error(key, error).help("one for each layer of neuron and one for the output, or null"));
    }
    for (k, name) in names.iter().enumerate().filter(|(_, name)| !name.is_null()) {
        if let Some(first) = names[..k].iter().position(|other| other == name) {
            let error = err!("layers {first} and {k} are both {name}; layers of one net cannot share parameters here");
            return Err(section.error(key, error).help("give them different names, or null"));
        }
    }
    Ok(())
}
