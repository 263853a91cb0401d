//! Neighbours of the training data, and `sel` from them.

use super::statistics::own_work;
use crate::data::Dataset;
use crate::model::dp::options::{DescriptorOptions, ModelOptions, Sel};
use crate::neighbor::Cut;
use crate::neighbor::stat::NeighborStat;
use crate::train::options::RunOptions;
use crate::train::team::Team;
use crate::{Result, bail, err};
use rayon::prelude::*;
use serde_json::Value;
use std::sync::Arc;

/// Shortest distance and largest numbers of neighbours over the whole training set, for each descriptor.
pub fn neighbor_statistics(
    team: &mut Team,
    options: &RunOptions,
    model: &ModelOptions,
    data: &Arc<Dataset>,
    has_origin: bool,
) -> Result<Option<Vec<NeighborStat>>> {
    let descriptors = &model.descriptors;
    if options.skip_neighbor_stat || has_origin {
        if !descriptors.is_fixed() && !has_origin {
            let e = err!(
                "sel is \"auto\", which needs the neighbour statistics that --skip-neighbor-stat leaves out"
            );
            return team.agree(Err(e));
        }
        return Ok(None);
    }
    log::info!("Calculating neighbor statistics... (add --skip-neighbor-stat to skip this step)");
    let n_types = model.type_map.len();
    let frames: Vec<(usize, usize)> = data
        .systems
        .iter()
        .enumerate()
        .flat_map(|(s, system)| (0..system.n_frames).map(move |k| (s, k)))
        .collect();
    let frames = own_work(team, data, &frames, team.size() > 1);
    let of_frame = |&(s, k, cut): &(usize, usize, Cut)| {
        let system = &data.systems[s];
        let frame = system.read_frame(k)?;
        let stats = descriptors.list.iter().map(|se| NeighborStat::of_blocks(&frame, se.rcut, n_types, cut));
        stats.collect::<Result<Vec<_>>>().map_err(|e| e.at(format!("{}: frame {k}", system.path)))
    };
    let empty = || vec![NeighborStat::empty(n_types); descriptors.list.len()];
    let merge =
        |a: Vec<NeighborStat>, b: &[NeighborStat]| a.into_iter().zip(b).map(|(a, b)| a.merge(b)).collect();
    let local = frames.par_iter().map(of_frame).try_reduce(empty, |a, b| Ok(merge(a, &b)));
    let mut mine = team.agree(local)?;
    // An infinite distance has no place in JSON.
    mine.iter_mut().for_each(|stat| stat.min_distance = stat.min_distance.min(f64::MAX));
    let total = team.gather(&mine)?.iter().fold(empty(), |a, b| merge(a, b));
    for stat in &total {
        log::info!("training data with min nbor dist: {}", stat.min_distance);
        log::info!("training data with max nbor size: {:?}", stat.max_neighbors);
    }
    Ok(Some(total))
}

/// Turns "auto" into numbers, and warns where the numbers of the input are too small.
pub fn resolve_sel(
    model: &mut ModelOptions,
    full: &mut Value,
    neighbors: Option<&[NeighborStat]>,
    saved: Option<&ModelOptions>,
) -> Result<()> {
    for k in 0..model.descriptors.list.len() {
        let saved = saved.and_then(|saved| saved.descriptors.list.get(k));
        let stat = neighbors.map(|stats| &stats[k]);
        let Some(sel) = sel_of(&model.descriptors.list[k], &model.type_map, stat, saved)? else { continue };
        log::info!("sel is set to {sel:?}");
        let in_input = model.descriptors.list[k].sel_in_input(&sel);
        for model_section in [&mut full["model"], &mut model.script] {
            if let Some(section) = model.descriptors.section_of(model_section, k) {
                section["sel"] = in_input.clone();
            }
        }
        model.descriptors.list[k].sel = Sel::Fixed(sel);
    }
    Ok(())
}

/// The numbers in place of "auto"; `None` where they are there, with a warning where they are too small.
fn sel_of(
    se: &DescriptorOptions,
    type_map: &[String],
    stat: Option<&NeighborStat>,
    saved: Option<&DescriptorOptions>,
) -> Result<Option<Vec<usize>>> {
    Ok(Some(match (&se.sel, stat, saved) {
        (Sel::Fixed(sel), Some(stat), _) if se.is_mixed() => {
            if sel[0] < stat.max_together {
                log::warn!(
                    "sel is {}, but some atom has {} neighbors: only the nearest count, and energies are not smooth where one \
                     drops out",
                    sel[0],
                    stat.max_together
                );
            }
            return Ok(None);
        }
        (Sel::Fixed(sel), Some(stat), _) => {
            for (t, (&sel, &most)) in sel.iter().zip(&stat.max_neighbors).enumerate() {
                if sel < most {
                    log::warn!(
                        "sel of type {} is {sel}, but some atom has {most} such neighbors: only the nearest count, and \
                         energies are not smooth where one drops out",
                        type_map[t]
                    );
                }
            }
            return Ok(None);
        }
        (Sel::Fixed(_), None, _) => return Ok(None),
        (Sel::Auto(ratio), Some(stat), _) => {
            // A multiple of four above what was found, as DeePMD-kit takes it.
            let enough = |&most: &usize| ((most.max(1) as f64 * ratio).floor() as usize).div_ceil(4) * 4;
            match se.is_mixed() {
                true => vec![enough(&stat.max_together)],
                false => stat.max_neighbors.iter().map(enough).collect::<Vec<usize>>(),
            }
        }
        (Sel::Auto(_), None, Some(saved)) => saved.fixed_sel().to_vec(),
        (Sel::Auto(_), None, None) => bail!("sel is \"auto\" and there are no neighbour statistics"),
    }))
}
