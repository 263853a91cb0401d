//! Which panels a figure has.

use super::Figure;
use super::canvas::{Anchor, BLACK, Canvas, Color, PALETTE};
use super::panel::{Axis, Layer, Panel};
use super::scale::Scale;
use super::source::{Pairs, RankTimes, Series};
use crate::err;
use crate::error::Result;
use crate::report::number::exp;

/// A panel with its labels: two of them are as wide as a page of text (7 inches).
const SIZE: [f64; 2] = [336.0, 252.0];
const TITLE: f64 = 26.0;
/// Rows of a learning curve from which on its mean is drawn over the rows themselves.
const MANY: usize = 300;

/// What the user may choose.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub title: Option<String>,
    /// Quantities, e.g. `rmse_f`; all where empty.
    pub quantities: Vec<String>,
    /// Steps on a logarithmic axis.
    pub log_steps: bool,
}

/// Learning curves of one or more runs: a panel for each quantity, a colour for each run.
pub fn curves(runs: &[(String, Vec<Series>)], options: &Options) -> Result<Figure> {
    let mut quantities: Vec<&str> = Vec::new();
    for series in runs.iter().flat_map(|(_, series)| series) {
        if !quantities.contains(&series.quantity.as_str()) {
            quantities.push(&series.quantity);
        }
    }
    if let Some(unknown) = options.quantities.iter().find(|q| !quantities.contains(&q.as_str())) {
        return Err(
            err!("--quantity: found no {unknown}").help(format!("there are: {}", quantities.join(" ")))
        );
    }
    let is_wanted = |q: &&str| options.quantities.is_empty() || options.quantities.iter().any(|o| o == q);
    let lines = Lines::of(runs);
    let panels: Vec<Panel> =
        quantities.into_iter().filter(is_wanted).filter_map(|q| curve_panel(&lines, q, options)).collect();
    if panels.is_empty() {
        return Err(err!("no value of these curves can be drawn: all of them are missing or not positive"));
    }
    let has_both = |wanted| runs.iter().flat_map(|(_, s)| s).any(|s| s.is_validation == wanted);
    let mut legend: Vec<(String, Color, bool)> = Vec::new();
    if lines.names.len() > 1 {
        legend = lines.names.iter().map(|(name, color)| (name.clone(), *color, false)).collect();
    }
    if has_both(true) && has_both(false) {
        let color = if lines.names.len() > 1 { BLACK } else { color_of(0) };
        legend.extend([("training".to_owned(), color, false), ("validation".to_owned(), color, true)]);
    }
    Ok(page(panels, options, &legend))
}

/// What has a colour of its own: a run, or a branch of a multi-task run.
struct Lines<'a> {
    names: Vec<(String, Color)>,
    all: Vec<(Color, &'a Series)>,
    /// Number of the run, and the branch, of each name.
    keys: Vec<(usize, &'a str)>,
}

impl<'a> Lines<'a> {
    fn of(runs: &'a [(String, Vec<Series>)]) -> Self {
        let mut lines = Lines { names: Vec::new(), all: Vec::new(), keys: Vec::new() };
        for (number, (run, series)) in runs.iter().enumerate() {
            let has_branches = series.iter().any(|s| !s.branch.is_empty());
            for one in series {
                if has_branches && one.branch.is_empty() {
                    // What holds for all branches of the only run needs no name.
                    let color = if runs.len() > 1 { lines.color((number, ""), run) } else { BLACK };
                    lines.all.push((color, one));
                    continue;
                }
                let name = match (one.branch.as_str(), runs.len()) {
                    ("", _) => run.clone(),
                    (branch, 1) => branch.to_owned(),
                    (branch, _) => format!("{run}, {branch}"),
                };
                let color = lines.color((number, &one.branch), &name);
                lines.all.push((color, one));
            }
        }
        lines
    }

    /// The colour of a run or branch, which may be new.
    fn color(&mut self, key: (usize, &'a str), name: &str) -> Color {
        if let Some(known) = self.keys.iter().position(|known| *known == key) {
            return self.names[known].1;
        }
        let color = color_of(self.names.len());
        self.keys.push(key);
        self.names.push((name.to_owned(), color));
        color
    }
}

fn color_of(run: usize) -> Color {
    PALETTE[run % PALETTE.len()]
}

fn curve_panel(lines: &Lines, quantity: &str, options: &Options) -> Option<Panel> {
    let shown = || lines.all.iter().filter(|(_, series)| series.quantity == quantity);
    let values =
        |k: usize| shown().flat_map(move |(_, series)| series.points.iter().map(move |point| point[k]));
    let mut layers = Vec::new();
    for &(color, series) in shown() {
        let is_dashed = series.is_validation;
        // Many rows of one frame each are noise around a curve: the curve is what one looks for.
        let is_noisy = series.points.len() > MANY && quantity != "lr";
        if is_noisy && !is_dashed {
            let points = series.points.clone();
            layers.push(Layer::Curve { points, color: color.faint(0.25), width: 0.6, is_dashed: false });
        }
        let points = if is_noisy { running_mean(&series.points) } else { series.points.clone() };
        layers.push(Layer::Curve { points, color, width: 1.5, is_dashed });
    }
    Some(Panel {
        title: String::new(),
        x: Axis { label: "step".into(), scale: Scale::covering(values(0), options.log_steps)? },
        y: Axis { label: label_of(quantity), scale: Scale::covering(values(1), true)? },
        layers,
        notes: Vec::new(),
    })
}

fn label_of(quantity: &str) -> String {
    let (name, unit) = match quantity {
        "rmse" => ("weighted RMSE", ""),
        "rmse_e" => ("energy RMSE", "eV/atom"),
        "rmse_f" => ("force RMSE", "eV/Å"),
        "rmse_v" => ("virial RMSE", "eV/atom"),
        "mae_e" => ("energy MAE", "eV/atom"),
        "mae_f" => ("force MAE", "eV/Å"),
        "mae_v" => ("virial MAE", "eV/atom"),
        "rmse_local_dos" => ("density of states of atoms, RMSE", "1/eV"),
        "rmse_global_dos" => ("density of states, RMSE", "1/eV"),
        "rmse_local_cdf" => ("integrated density of states of atoms, RMSE", ""),
        "rmse_global_cdf" => ("integrated density of states, RMSE", ""),
        "rmse_local_dipole" => ("dipole of atoms, RMSE", ""),
        "rmse_global_dipole" => ("dipole, RMSE", ""),
        "rmse_local_polar" => ("polarizability of atoms, RMSE", ""),
        "rmse_global_polar" => ("polarizability, RMSE", ""),
        "lr" => ("learning rate", ""),
        other => (other, ""),
    };
    with_unit(name, unit)
}

fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") }
}

/// The geometric mean of a fiftieth of the curve around each point; missing values are left out.
fn running_mean(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let kept: Vec<[f64; 2]> = points.iter().copied().filter(|p| p[1].is_finite() && p[1] > 0.0).collect();
    let half = kept.len() / 100;
    let mut sums = vec![0.0];
    for point in &kept {
        sums.push(sums[sums.len() - 1] + point[1].ln());
    }
    let mean = |i: usize| {
        // As many on both sides, so that the ends are not pulled inwards; a few more than that at the very ends.
        let half = half.min(i.min(kept.len() - 1 - i)).max(half / 3);
        let (first, end) = (i.saturating_sub(half), (i + half + 1).min(kept.len()));
        [kept[i][0], ((sums[end] - sums[first]) / (end - first) as f64).exp()]
    };
    (0..kept.len()).map(mean).collect()
}

/// Predictions beside labels, and the errors, of every file.
pub fn parity(sets: &[(String, Pairs)], options: &Options) -> Result<Figure> {
    let mut panels = Vec::new();
    for (i, (name, pairs)) in sets.iter().enumerate() {
        let several = sets.iter().any(|(other, _)| other != name);
        let title = if several {
            format!("{} · {name}", pairs.quantity.name)
        } else {
            pairs.quantity.name.to_owned()
        };
        panels.extend(parity_panels(&title, pairs, color_of(i)).into_iter().flatten());
    }
    match panels.is_empty() {
        true => Err(err!("there is no label to compare with")),
        false => Ok(page(panels, options, &[])),
    }
}

fn parity_panels(title: &str, pairs: &Pairs, color: Color) -> Option<[Panel; 2]> {
    let unit = pairs.quantity.unit;
    let finite: Vec<[f64; 2]> =
        pairs.values.iter().copied().filter(|p| p.iter().all(|x| x.is_finite())).collect();
    let scale = Scale::covering(finite.iter().flatten().copied(), false)?;
    let mut errors: Vec<f64> = finite.iter().map(|[label, predicted]| predicted - label).collect();
    let n = errors.len() as f64;
    let rmse = (errors.iter().map(|e| e * e).sum::<f64>() / n).sqrt();
    let mae = errors.iter().map(|e| e.abs()).sum::<f64>() / n;
    let note = |name: &str, error: f64| format!("{name} {} {unit}", exp(error, 2)).trim_end().to_owned();
    let mut notes = vec![note("RMSE", rmse), note("MAE", mae)];
    let missing = pairs.values.len() - finite.len();
    if missing > 0 {
        notes.push(format!("{missing} values that are not numbers are left out"));
    }
    let [low, high] = scale.ends();
    let diagonal = Layer::Curve {
        points: vec![[low, low], [high, high]],
        color: BLACK.faint(0.6),
        width: 0.8,
        is_dashed: true,
    };
    let axis = |label: String| Axis { label, scale };
    let plane = Panel {
        title: title.to_owned(),
        x: axis(with_unit("label", unit)),
        y: axis(with_unit("prediction", unit)),
        layers: vec![Layer::Points { points: finite.clone(), color }, diagonal],
        notes,
    };
    errors.sort_by(f64::total_cmp);
    Some([plane, histogram(title, &errors, unit, color)])
}

/// Errors, sorted. One in a thousand at each end may lie outside, and is counted.
fn histogram(title: &str, errors: &[f64], unit: &str, color: Color) -> Panel {
    const BARS: usize = 61;
    let skip = errors.len() / 1000;
    let reach = errors[skip].abs().max(errors[errors.len() - 1 - skip].abs()).max(f64::MIN_POSITIVE);
    let edges: Vec<f64> = (0..=BARS).map(|i| reach * (2.0 * i as f64 / BARS as f64 - 1.0)).collect();
    let mut heights = vec![0.0; BARS];
    let mut outside = 0;
    for error in errors {
        match (error / reach + 1.0) / 2.0 * BARS as f64 {
            place if (0.0..=BARS as f64).contains(&place) => heights[(place as usize).min(BARS - 1)] += 1.0,
            _ => outside += 1,
        }
    }
    let notes = if outside > 0 { vec![format!("{outside} of {} outside", errors.len())] } else { Vec::new() };
    Panel {
        title: title.to_owned(),
        x: Axis { label: with_unit("prediction − label", unit), scale: Scale::between(-reach, reach) },
        y: Axis { label: "count".into(), scale: Scale::from_zero(heights.iter().copied()) },
        layers: vec![Layer::Bars { edges, heights, color }],
        notes,
    }
}

/// A bar for each rank: which part of its time each phase took.
pub fn time_split(ranks: &[RankTimes], options: &Options) -> Result<Figure> {
    const ROW: f64 = 22.0;
    const LEFT: f64 = 70.0;
    const WIDTH: f64 = 520.0;
    let mut names: Vec<&str> = Vec::new();
    for name in ranks.iter().flat_map(|rank| rank.phases.keys()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let top = if options.title.is_some() { TITLE + 40.0 } else { 40.0 };
    let mut canvas = Canvas::new([LEFT + WIDTH + 80.0, top + ROW * ranks.len() as f64 + 34.0]);
    title(&mut canvas, options);
    let entries: Vec<_> =
        names.iter().enumerate().map(|(i, name)| ((*name).to_owned(), color_of(i), false)).collect();
    legend(&mut canvas, top - 18.0, &entries);
    for (row, rank) in ranks.iter().enumerate() {
        let y = top + ROW * row as f64;
        canvas.text([LEFT - 8.0, y + 14.0], format!("rank {}", rank.rank), 10.0, Anchor::End);
        let mut x = LEFT;
        for (i, name) in names.iter().enumerate() {
            let width = WIDTH * rank.phases.get(*name).unwrap_or(&0.0) / rank.total.max(f64::MIN_POSITIVE);
            canvas.fill([x, y + 2.0], [width, ROW - 4.0], color_of(i));
            x += width;
        }
        canvas.text([LEFT + WIDTH + 8.0, y + 14.0], format!("{:.3} s", rank.total), 10.0, Anchor::Start);
    }
    let bottom = top + ROW * ranks.len() as f64;
    for percent in [0, 25, 50, 75, 100] {
        let x = LEFT + WIDTH * f64::from(percent) / 100.0;
        canvas.line(vec![[x, top], [x, bottom + 4.0]], BLACK.faint(0.3), 0.6);
        canvas.text([x, bottom + 18.0], format!("{percent}%"), 10.0, Anchor::Middle);
    }
    Ok(Figure(canvas))
}

/// Panels in rows of two, below a title and a legend.
fn page(panels: Vec<Panel>, options: &Options, entries: &[(String, Color, bool)]) -> Figure {
    let columns = panels.len().min(2);
    let rows = panels.len().div_ceil(2);
    let above_legend = if options.title.is_some() { TITLE } else { 0.0 };
    let width = columns as f64 * SIZE[0];
    let legend_rows = legend_rows(width, entries);
    let above = above_legend + 18.0 * legend_rows as f64;
    let mut canvas = Canvas::new([width, above + rows as f64 * SIZE[1]]);
    title(&mut canvas, options);
    legend(&mut canvas, above_legend + 16.0, entries);
    for (i, panel) in panels.iter().enumerate() {
        let at = [(i % 2) as f64 * SIZE[0], above + (i / 2) as f64 * SIZE[1]];
        panel.draw(&mut canvas, at, SIZE);
    }
    Figure(canvas)
}

fn title(canvas: &mut Canvas, options: &Options) {
    if let Some(title) = &options.title {
        canvas.text([canvas.size[0] / 2.0, 19.0], title, 14.0, Anchor::Middle);
    }
}

/// How wide an entry of the legend is, about.
fn entry_width(name: &str) -> f64 {
    46.0 + 6.0 * name.chars().count() as f64
}

fn legend_rows(width: f64, entries: &[(String, Color, bool)]) -> usize {
    let mut rows = usize::from(!entries.is_empty());
    let mut x = 66.0;
    for (name, ..) in entries {
        if x + entry_width(name) > width && x > 66.0 {
            (rows, x) = (rows + 1, 66.0);
        }
        x += entry_width(name);
    }
    rows
}

fn legend(canvas: &mut Canvas, y: f64, entries: &[(String, Color, bool)]) {
    let (mut x, mut y) = (66.0, y);
    for (name, color, is_dashed) in entries {
        if x + entry_width(name) > canvas.size[0] && x > 66.0 {
            (x, y) = (66.0, y + 18.0);
        }
        let line = vec![[x, y - 3.5], [x + 24.0, y - 3.5]];
        if *is_dashed {
            canvas.dashes(line, *color, 2.0)
        } else {
            canvas.line(line, *color, 2.0)
        }
        canvas.text([x + 30.0, y], name, 10.5, Anchor::Start);
        x += entry_width(name);
    }
}
