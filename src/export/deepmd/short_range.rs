//! A network beside a table of pair energies: in files a model "zbl" of two models, of which the second is the table.

use super::read::{check_absent, check_type, check_version, numbers, unsupported};
use super::version;
use super::write::numbers as array;
use crate::error::Result;
use crate::export::tree::{Map, Node, Place, VARIABLES};
use crate::model::dp::options::Precision;
use crate::model::dp::short_range::{PairTable, ShortRange};
use crate::model::dp::spec::DpModel;
use crate::{bail, err};
use serde_json::Value;

/// Splines of a file may differ from those of its rows by this, relative to the largest.
const SPLINE_TOLERANCE: f64 = 1e-9;

/// The two models of a file.
pub(super) struct Parts<'a> {
    pub net: Place<'a>,
    table: Place<'a>,
}

/// What the file says of the table.
pub(super) struct Blended {
    pub options: ShortRange,
    pub table: PairTable,
}

/// `None` where the model is a network alone.
pub(super) fn parts<'a>(model: &Place<'a>) -> Result<Option<Parts<'a>>> {
    if model.get("type")?.str()? != "zbl" {
        return Ok(None);
    }
    check_version(model, version::MODEL)?;
    let models = model.get("models")?;
    match &models.items()?[..] {
        [net, table] => Ok(Some(Parts { net: net.clone(), table: table.clone() })),
        items => bail!("{models}: found {} models, wanted a network and a table", items.len()),
    }
}

impl Parts<'_> {
    /// Reads the table and how it is blended; `script` is what the input said of the model, or null.
    pub fn read(&self, model: &Place, script: &Value, n_types: usize, rcut: f64) -> Result<Blended> {
        check_type(&self.table, "model", "pairtab")?;
        for part in [&self.net, &self.table] {
            for key in ["atom_exclude_types", "pair_exclude_types", "preset_out_bias"] {
                check_absent(part, key)?;
            }
        }
        let bias = |place: &Place| -> Result<bool> {
            let found = numbers(&place.get(VARIABLES)?, "out_bias", n_types)?.unwrap_or_default();
            Ok(found.iter().any(|&x| x != 0.0))
        };
        let (of_net, of_both) = (bias(&self.net)?, bias(model)?);
        if bias(&self.table)? || of_net && of_both {
            return Err(unsupported(model, "more than one bias (out_bias) of a network beside a table"));
        }
        let number = |key: &str| model.get(key)?.f64();
        let (smin_alpha, sw_rmin, sw_rmax) = (number("smin_alpha")?, number("sw_rmin")?, number("sw_rmax")?);
        if !(smin_alpha > 0.0
            && smin_alpha.is_finite()
            && 0.0 <= sw_rmin
            && sw_rmin < sw_rmax
            && sw_rmax.is_finite())
        {
            bail!(
                "{model}: found smin_alpha {smin_alpha}, sw_rmin {sw_rmin}, sw_rmax {sw_rmax}, wanted 0 <= sw_rmin < sw_rmax"
            );
        }
        let options = ShortRange {
            file: script["use_srtab"].as_str().unwrap_or_default().to_string(),
            smin_alpha,
            sw_rmin,
            sw_rmax,
            add_bias: !of_net,
        };
        Ok(Blended { options, table: self.read_table(n_types, rcut)? })
    }

    fn read_table(&self, n_types: usize, rcut: f64) -> Result<PairTable> {
        let tab = self.table.get("tab")?;
        check_version(&tab, version::PAIR_TABLE)?;
        let found = self.table.get("rcut")?;
        if found.f64()? != rcut {
            return Err(found.wanted(&format!("the cutoff of the network, {rcut}")));
        }
        let variables = tab.get(VARIABLES)?;
        let (rows, splines) = (variables.get("vdata")?, variables.get("tab_data")?);
        let &[_, width] = &rows.array()?.shape[..] else { return Err(rows.wanted("an array of rows")) };
        let rmax = tab.get("rmax")?.f64()?;
        let table =
            PairTable::new(width, rows.array()?.to_f64(), Some(rmax), rcut).map_err(|e| e.at(&rows))?;
        if table.n_types() != n_types {
            bail!("{rows}: the table is for {} types, the model has {n_types}", table.n_types());
        }
        let (found, wanted) = (splines.array()?.to_f64(), table.all_coefficients());
        let largest = wanted.iter().fold(0.0f64, |a, x| a.max(x.abs()));
        let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= SPLINE_TOLERANCE * largest;
        if found.len() != wanted.len() || !found.iter().zip(&wanted).all(is_near) {
            return Err(err!("{splines}: found other splines than those of the rows (vdata)")
                .help("the file is damaged, or was written by another program than DeePMD-kit"));
        }
        Ok(table)
    }
}

/// The model of a file, around that of the network; its own biases and exclusions are given.
pub(super) fn write(whole: Map, net: Map, model: &DpModel, options: &ShortRange) -> Map {
    let table = model.stats.pair_table.as_ref().expect("a model with use_srtab has its table");
    let per_type = |x: f64| array(Precision::Float64, vec![1, model.n_types(), 1], &vec![x; model.n_types()]);
    let n_slots: usize = model.options.descriptors.list[0].fixed_sel().iter().sum();
    let pairtab = Map::new()
        .with("type_map", model.options.type_map.clone())
        .with("atom_exclude_types", Vec::<usize>::new())
        .with("pair_exclude_types", Vec::<usize>::new())
        .with("rcond", Node::Null)
        .with("preset_out_bias", Node::Null)
        .with(VARIABLES, Map::new().with("out_bias", per_type(0.0)).with("out_std", per_type(1.0)))
        .with("@class", "Model")
        .with("@version", version::MODEL)
        .with("type", "pairtab")
        .with("tab", table_tree(table))
        .with("rcut", table.rcut())
        .with("sel", n_slots);
    whole
        .with("@class", "Model")
        .with("@version", version::MODEL)
        .with("type", "zbl")
        .with("models", vec![net, pairtab])
        .with("weights", "mean")
        .with("sw_rmin", options.sw_rmin)
        .with("sw_rmax", options.sw_rmax)
        .with("smin_alpha", options.smin_alpha)
}

fn table_tree(table: &PairTable) -> Map {
    let array = |shape: Vec<usize>, values: &[f64]| array(Precision::Float64, shape, values);
    let (pieces, types, coefficients) = (table.n_pieces(), table.n_types(), table.all_coefficients());
    let info = [table.rmin(), table.spacing(), pieces as f64, types as f64];
    let n_rows = pieces + 1;
    let variables = Map::new()
        .with("vdata", array(vec![n_rows, table.values().len() / n_rows], table.values()))
        .with("tab_info", array(vec![4], &info))
        .with("tab_data", array(vec![coefficients.len()], &coefficients));
    Map::new()
        .with("@class", "PairTab")
        .with("@version", version::PAIR_TABLE)
        .with("rmin", table.rmin())
        .with("rmax", table.rmax())
        .with("hh", table.spacing())
        .with("ntypes", types)
        .with("rcut", table.rcut())
        .with("nspline", pieces)
        .with(VARIABLES, variables)
}
