//! Opens the data of a run.

use super::DataSets;
use crate::data::field::{Field, Need};
use crate::data::options::DataOptions;
use crate::data::{Dataset, System, Wants};
use crate::model::dp::options::ModelOptions;
use crate::neighbor::stat::NeighborStat;
use crate::train::input::Input;
use crate::train::team::Team;
use crate::train::{same, warnings};
use crate::{Result, err};
use rayon::prelude::*;
use serde_json::Value;
use std::sync::Arc;

/// Opens the data of a run, and warns of what is hardly meant.
pub fn open_data(team: &mut Team, input: &Input) -> Result<DataSets> {
    let wants = input.loss.wants(&input.model.fitting);
    let training = open(team, &input.training.training_data, &input.model, &wants, "training")?;
    let validation = match &input.training.validation_data {
        Some(data) => Some(open(team, data, &input.model, &wants, "validation")?),
        None => None,
    };
    let data = DataSets { training, validation };
    if team.is_root() {
        let lists = [("training", Some(&data.training)), ("validation", data.validation.as_ref())];
        let lists = lists.into_iter().filter_map(|(name, list)| Some((name, list?)));
        let missing =
            lists.flat_map(|(name, list)| warnings::missing_labels(list, name, &input.loss, &wants));
        missing.chain(warnings::doubled(&data)).for_each(|line| log::warn!("{line}"));
    }
    Ok(data)
}

/// Where labels are those of selected atoms alone, the other types have no output.
pub fn leave_out_unselected(model: &mut ModelOptions, full: &mut Value, data: &DataSets) {
    let sets = [Some(&data.training), data.validation.as_ref()];
    let Some(system) =
        sets.into_iter().flatten().flat_map(|set| &set.systems).find(|s| s.has_selected_labels())
    else {
        return;
    };
    let is_left_out = |t: &usize| !model.has_energy(*t as i32) || !model.fitting.sel_type.contains(t);
    let left_out: Vec<usize> = (0..model.type_map.len()).filter(is_left_out).collect();
    let names: Vec<&str> = left_out.iter().map(|&t| model.type_map[t].as_str()).collect();
    log::info!(
        "atoms of {} have no output: {} has labels of the others alone",
        names.join(", "),
        system.path
    );
    for section in [&mut full["model"], &mut model.script] {
        section["atom_exclude_types"] = left_out.clone().into();
    }
    model.atom_exclude_types = left_out;
}

/// Refuses data without any label that the loss compares with.
fn check_labels(data: &Dataset, name: &str, wants: &Wants) -> Result<()> {
    let labels =
        [Field::Energy, Field::Force, Field::Virial, Field::AtomEnergy, Field::Output, Field::AtomOutput];
    let wanted = || labels.into_iter().filter(|field| field.need(wants, false, false) != Need::No);
    if data.systems.iter().any(|system| wanted().any(|field| system.has(field))) {
        return Ok(());
    }
    let names: Vec<String> = wanted().map(|field| format!("{}.npy", field.names(wants)[0])).collect();
    Err(err!("training.{name}_data: no system has any of {}", names.join(", "))
        .help("a label that is missing is left out of the loss; here nothing is left"))
}

/// Opens and checks a data set; the reading is shared over ranks.
fn open(
    team: &mut Team,
    options: &DataOptions,
    model: &ModelOptions,
    wants: &Wants,
    name: &str,
) -> Result<Arc<Dataset>> {
    let systems = team.agree(Dataset::systems(options, &model.type_map, wants))?;
    let systems = far_apart(team, systems, options.min_pair_dist, model.type_map.len())?;
    let opened = Dataset::new(systems, &options.batch_size, &options.weights);
    let opened = opened.and_then(|data| check_labels(&data, name, wants).map(|()| data));
    let data = team.agree(opened)?;
    same::check_data(team, &data, name)?;
    for line in data.summary(name, 40) {
        log::info!("{line}");
    }
    let (rank, size) = (team.rank(), team.size());
    let own: Vec<_> = data.systems.iter().skip(rank).step_by(size).collect();
    let checked = own.par_iter().try_for_each(|system| system.check_finite(&|_| ()));
    team.agree(checked)?;
    Ok(Arc::new(data))
}

/// Leaves out frames with atoms closer than `distance`; the reading is shared over ranks.
fn far_apart(
    team: &mut Team,
    mut systems: Vec<System>,
    distance: f64,
    n_types: usize,
) -> Result<Vec<System>> {
    if distance == 0.0 {
        return Ok(systems);
    }
    let is_good = |system: &System, k: usize| -> Result<bool> {
        let frame = system.read_frame(k)?;
        let stat = NeighborStat::even_where_atoms_overlap(&frame, distance, n_types);
        Ok(stat.map_err(|e| e.at(format!("{}: frame {k}", system.path)))?.min_distance >= distance)
    };
    let all: Vec<(usize, usize)> = systems
        .iter()
        .enumerate()
        .flat_map(|(s, system)| (0..system.n_frames).map(move |k| (s, k)))
        .collect();
    let (rank, size) = (team.rank(), team.size());
    let own: Vec<(usize, usize)> = all.iter().skip(rank).step_by(size).copied().collect();
    let mine: Result<Vec<bool>> = own.par_iter().map(|&(s, k)| is_good(&systems[s], k)).collect();
    let mine = team.agree(mine)?;
    let everyones = team.gather(&mine)?;
    let mut kept: Vec<Vec<usize>> = vec![Vec::new(); systems.len()];
    for (i, &(s, k)) in all.iter().enumerate() {
        if everyones[i % size][i / size] {
            kept[s].push(k);
        }
    }
    let n_kept: usize = kept.iter().map(Vec::len).sum();
    log::info!(
        "{} of {} frames have atoms closer than {distance} A and are left out",
        all.len() - n_kept,
        all.len()
    );
    for (system, kept) in systems.iter_mut().zip(kept) {
        if kept.is_empty() {
            let e = err!("{}: every frame has atoms closer than min_pair_dist, {distance} A", system.path);
            return team.agree(Err(e.help("take it out of training_data.systems")));
        }
        system.keep(kept);
    }
    Ok(systems)
}
