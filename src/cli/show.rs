//! `dp show`: tells what is in a model.

mod branches; // of a multi-task model

use super::literal::{list, literal};
use super::logging::LogArgs;
use super::{Command, typed};
use crate::err;
use crate::error::Result;
use crate::export::deepmd;
use crate::export::tree::{Map, Node, VARIABLES};
use crate::infer::branches::SavedBranches;
use crate::infer::load::{load_checkpoint, load_model};
use crate::model::dp::Dp;
use crate::model::dp::spec::{DpModel, Net};
use crate::model::params::ParamView;
use clap::Args;
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "show",
    about: "Tell what is in a model",
    examples: "Examples:\n  dp show model.dp type-map descriptor\n  dp show model.ckpt size",
    define: ShowArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

const ATTRIBUTES: [&str; 7] =
    ["model-branch", "type-map", "descriptor", "fitting-net", "size", "observed-type", "serialization-tree"];

/// The command line of `dp show`.
#[derive(Debug, Clone, clap::Args)]
struct ShowArgs {
    /// Model file (model.dp, model.yaml) or checkpoint (model.ckpt, its folder)
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// What to tell
    #[arg(value_name = "ATTRIBUTES", required = true, num_args = 1.., value_parser = ATTRIBUTES)]
    attributes: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &ShowArgs) -> Result<()> {
    args.log.start()?;
    if let Some((_, saved)) = load_checkpoint(&args.input)?
        && SavedBranches::is_one(&saved)
    {
        return branches::show(&SavedBranches::of(&saved)?, &args.attributes);
    }
    let model = load_model(&args.input)?;
    log::info!("This is a singletask model");
    for attribute in ATTRIBUTES.iter().filter(|a| args.attributes.iter().any(|asked| asked == *a)) {
        for line in lines(attribute, &model)? {
            log::info!("{line}");
        }
    }
    Ok(())
}

fn lines(attribute: &str, model: &DpModel) -> Result<Vec<String>> {
    let options = model.embedded.as_ref().map_or(&model.options, |trained| &trained.options);
    let script = &options.script;
    let section = |name: &str, key: &str| match script.get(key) {
        Some(value) => format!("The {name} is {}", literal(value)),
        None => format!("The {name} is not part of this model file"),
    };
    Ok(match attribute {
        "model-branch" => {
            return Err(err!("model-branch: this is a singletask model").help("it has no branches to show"));
        }
        "type-map" => vec![format!("The type_map is {}", list(&model.options.type_map))],
        "descriptor" => {
            let types = options.type_embedding.as_ref();
            let types = types.map(|_| section("type_embedding parameter", "type_embedding"));
            std::iter::once(section("descriptor parameter", "descriptor")).chain(types).collect()
        }
        "fitting-net" => vec![section("fitting_net parameter", "fitting_net")],
        "size" => size_lines(model),
        "observed-type" => observed_lines(model),
        "serialization-tree" => vec![format!("Model serialization tree:\n{}", serialization_tree(model)?)],
        other => unreachable!("the command line accepts no attribute {other}"),
    })
}

fn size_lines(model: &DpModel) -> Vec<String> {
    let size = |nets: &[Net]| -> usize {
        let layers = nets.iter().flat_map(|net| &net.layers);
        layers.map(|l| l.w.len() + l.b.len() + l.idt.as_ref().map_or(0, Vec::len)).sum()
    };
    let (mut descriptor, mut fitting) = (size(&model.descriptor_nets), size(&model.fitting_nets));
    let mut lines = vec!["Parameter counts:".to_string()];
    if let Some(trained) = &model.embedded {
        let dp = Dp::new(trained.options.clone(), model.stats.clone());
        let of = |front: &str| {
            let views = dp.trained_table().views().iter();
            views.filter(|view| view.name.starts_with(front)).map(ParamView::len).sum()
        };
        (descriptor, fitting) = (of("descriptor"), of("fitting_net"));
        let types: usize = of("type_embedding");
        lines.push(format!("Parameters in type-embedding, part of the descriptor: {}", with_commas(types)));
        descriptor += types;
    }
    lines.extend([
        format!("Parameters in descriptor: {}", with_commas(descriptor)),
        format!("Parameters in fitting-net: {}", with_commas(fitting)),
        format!("Parameters in total: {}", with_commas(descriptor + fitting)),
    ]);
    lines
}

/// Types with a bias: those that the training data held.
fn observed_lines(model: &DpModel) -> Vec<String> {
    let observed = observed_types(model);
    vec![
        "The observed types for this model: ".into(),
        format!("Number of observed types: {} ", observed.len()),
        format!("Observed types: {} ", list(&observed)),
    ]
}

fn observed_types(model: &DpModel) -> Vec<String> {
    let rows = model.stats.bias.chunks_exact(model.options.fitting.output().width);
    let types = model.options.type_map.iter().zip(rows);
    let is_there = |row: &[f64]| row.iter().any(|bias| bias.abs() > 1e-6);
    let mut observed: Vec<String> =
        types.filter(|(_, row)| is_there(row)).map(|(name, _)| name.clone()).collect();
    sort_elements(&mut observed);
    observed
}

/// By atomic number.
fn sort_elements(names: &mut [String]) {
    names.sort_by_key(|name| ELEMENTS.split_whitespace().position(|e| e == name).unwrap_or(usize::MAX));
}

/// Chemical elements by atomic number.
const ELEMENTS: &str = "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As \
    Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb \
    Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh \
    Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og";

/// `1,224`.
fn with_commas(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The tree of a model file with the number of array elements of each part; equal neighbours share a line.
fn serialization_tree(model: &DpModel) -> Result<String> {
    let Node::Map(tree) = deepmd::to_tree(model) else {
        return Err(err!("the tree of a model is not a map"));
    };
    let Some(Node::Map(root)) = tree.get("model") else {
        return Err(err!("the tree of a model has no key model"));
    };
    Ok(Part::of_map(root).draw())
}

/// A part of the tree, as it is drawn.
struct Part {
    name: String,
    is_list: bool,
    /// Array elements of this part alone.
    own: usize,
    children: Vec<(String, Part)>,
}

impl Part {
    fn of_map(map: &Map) -> Part {
        let text = |key: &str| match map.get(key) {
            Some(Node::Str(text)) => Some(text.as_str()),
            _ => None,
        };
        let name = match (text("@class"), text("type")) {
            (Some(class), Some(kind)) => format!("{class} {kind}"),
            (Some(class), None) => class.to_owned(),
            _ => "Node".to_owned(),
        };
        let mut part = Part { name, is_list: false, own: 0, children: Vec::new() };
        for (key, value) in map.iter() {
            match value {
                _ if key == VARIABLES => part.own = count(value),
                Node::Map(map) => part.children.push((key.to_owned(), Part::of_map(map))),
                Node::List(items) => {
                    let list = Part::of_list(items);
                    if !list.children.is_empty() {
                        part.children.push((key.to_owned(), list));
                    }
                }
                _ => {}
            }
        }
        part
    }

    fn of_list(items: &[Node]) -> Part {
        let child = |(i, item): (usize, &Node)| match item {
            Node::Map(map) => Some((i.to_string(), Part::of_map(map))),
            Node::List(items) => Some((i.to_string(), Part::of_list(items))),
            _ => None,
        };
        let children = items.iter().enumerate().filter_map(child).collect();
        Part { name: "ListNode".into(), is_list: true, own: 0, children }
    }

    fn size(&self) -> usize {
        self.own + self.children.iter().map(|(_, child)| child.size()).sum::<usize>()
    }

    fn draw(&self) -> String {
        let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
        for (key, child) in &self.children {
            let drawn = child.draw();
            match groups.last_mut() {
                Some((keys, last)) if *last == drawn => keys.push(key),
                _ => groups.push((vec![key], drawn)),
            }
        }
        let mut text = format!("{} (size={})", self.name, short(self.size()));
        let n = groups.len();
        for (i, (keys, drawn)) in groups.iter().enumerate() {
            let (branch, below) = if i + 1 < n { ("├──", "│  ") } else { ("└──", "   ") };
            let label = match keys[..] {
                [first, .., last] if self.is_list && keys.len() > 2 => format!("[{first}...{last}]"),
                _ => keys.join(", "),
            };
            text.push_str(&format!("\n{branch}{label} -> {}", drawn.replace('\n', &format!("\n{below}"))));
        }
        text
    }
}

fn count(node: &Node) -> usize {
    match node {
        Node::Array(array) => array.data.len(),
        Node::Map(map) => map.iter().map(|(_, value)| count(value)).sum(),
        Node::List(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// `408`, `9.1K`, `1.2M`.
fn short(n: usize) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1}K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}B", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_commas() {
        let cases = [(0, "0"), (999, "999"), (1224, "1,224"), (1234567, "1,234,567")];
        for (n, want) in cases {
            assert_eq!(with_commas(n), want);
        }
        assert_eq!([short(408), short(9_124), short(2_500_000)], ["408", "9.1K", "2.5M"]);
    }
}
