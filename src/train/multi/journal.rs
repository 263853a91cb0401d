//! What rank 0 writes of a multi-task training.

use super::setup::MultiSetup;
use super::state::{MultiRun, MultiState};
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::infer::branches::BranchHeader;
use crate::report::lcurve::{Columns, LCurve, ResumeAt, Row};
use crate::report::progress::Note;
use crate::report::tensorboard::EventWriter;
use crate::report::{dashboard, messages};
use crate::sample::BranchDraw;
use crate::train::caller::{Caller, Display};
use crate::train::dp::{make_room, write_full};
use crate::train::learner::{Snapshot, StepRate, StepReport};
use crate::train::options::RunOptions;
use crate::train::run::Journal;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// `out.json`, `lcurve.out`, log lines, TensorBoard events, checkpoints.
pub struct MultiJournal<'a> {
    setup: Arc<MultiSetup>,
    full: Value,
    lcurve: LCurve,
    columns: Columns,
    branches: Vec<Shown>,
    turns: BranchDraw,
    events: Option<EventWriter>,
    caller: Option<Caller<'a>>,
    /// The command that continues the run.
    continues: String,
}

/// What is shown of a branch.
struct Shown {
    /// Columns of the learning curve, without the branch.
    names: Vec<String>,
    /// Where the value of each stands among what the loss shows, and how many these are.
    order: Vec<usize>,
    width: usize,
    validates: bool,
}

impl Shown {
    /// The values of the columns, from those of the loss at the front, which are taken away.
    fn pick(&self, values: &mut &[f64]) -> Vec<f64> {
        let (own, rest) = values.split_at(self.width);
        *values = rest;
        self.order.iter().map(|&k| own[k]).collect()
    }
}

impl<'a> MultiJournal<'a> {
    /// Everything before the first step has succeeded: `out.json` is written now.
    pub fn open(options: &RunOptions, setup: Arc<MultiSetup>, caller: Option<Caller<'a>>) -> Result<Self> {
        let training = &setup.input.common().training;
        if setup.resumed.is_none() {
            make_room(options, setup.input.common())?;
        }
        let full = setup.input.full();
        write_full(options, &full)?;
        let branches: Vec<Shown> = setup
            .branches
            .iter()
            .map(|branch| {
                let shown = branch.input.loss.shown(&branch.input.model.fitting);
                let mut names = branch.input.loss.columns(&branch.input.model.fitting);
                names.sort();
                let place = |name: &String| shown.iter().position(|n| n.as_ref() == Some(name)).unwrap_or(0);
                let order = names.iter().map(place).collect();
                Shown { names, order, width: shown.len(), validates: branch.data.validation.is_some() }
            })
            .collect();
        let named = setup.input.branches.iter().zip(&branches);
        let columns = Columns::of_branches(
            named.map(|(branch, shown)| (branch.name.as_str(), &shown.names[..], shown.validates)),
        );
        let lcurve = match &setup.resumed {
            Some(state) => LCurve::resume(
                &training.disp_file,
                columns.clone(),
                ResumeAt::Byte { bytes: state.about.lcurve_bytes, step: state.step },
            )?,
            None => LCurve::create(&training.disp_file, columns.clone())?,
        };
        let events = match training.tensorboard {
            true => Some(EventWriter::create(&training.tensorboard_log_dir)?),
            false => None,
        };
        Ok(MultiJournal {
            continues: options.continue_command(&training.save_ckpt),
            turns: BranchDraw::new(training.seed, &setup.weights),
            full,
            lcurve,
            columns,
            branches,
            events,
            caller,
            setup,
        })
    }

    fn branch_name(&self, branch: usize) -> &str {
        &self.setup.input.branches[branch].name
    }

    /// Shows a row to the caller, who may have seen enough.
    fn show(&mut self, row: &Row) {
        let Some(caller) = &mut self.caller else { return };
        let names = self.columns.names().iter().cloned();
        let train = names.zip(row.train.iter().copied()).collect();
        let valid = self.columns.validated().cloned().zip(row.valid.iter().copied()).collect();
        if !(caller.on_display)(&Display { step: row.step, lr: row.lr, train, valid }) {
            caller.stop.stop();
        }
    }
}

impl Journal for MultiJournal<'_> {
    fn row(&mut self, row: &Row) -> Result<Option<Note>> {
        let (mut train, mut valid) = (&row.train[..], &row.valid[..]);
        let mut all = Row { step: row.step, train: Vec::new(), valid: Vec::new(), lr: row.lr };
        let mut note = None;
        // The page has a place for a second value of each name, or of none.
        let some_validate = self.branches.iter().any(|shown| shown.validates);
        let mut on_page = Vec::new();
        for (k, shown) in self.branches.iter().enumerate() {
            let own_train = shown.pick(&mut train);
            let own_valid = if shown.validates { shown.pick(&mut valid) } else { Vec::new() };
            let name = self.branch_name(k);
            if self.setup.input.common().training.disp_training {
                for line in
                    messages::branch_lines(row.step, name, &shown.names, [&own_train, &own_valid], row.lr)
                {
                    log::info!("{line}");
                }
            }
            let values = if own_valid.is_empty() { &own_train } else { &own_valid };
            let force = shown.names.iter().position(|name| name.ends_with("_f")).unwrap_or(0);
            note = note.or(values
                .get(force)
                .map(|&value| Note { text: format!("{name} {} {value:.4}", shown.names[force]), value }));
            match own_valid.is_empty() && some_validate {
                true => on_page.extend(vec![f64::NAN; own_train.len()]),
                false => on_page.extend(&own_valid),
            }
            all.train.extend(own_train);
            all.valid.extend(own_valid);
        }
        if self.setup.input.common().training.disp_training {
            self.lcurve.append(&all)?;
        }
        dashboard::row(self.columns.names(), &Row { valid: on_page, ..all.clone() });
        self.show(&all);
        Ok(note)
    }

    fn record(&mut self, done: u64, rate: StepRate, report: &StepReport, speed: f64) -> Result<()> {
        let name = self.branch_name(self.turns.at(done - 1)).to_string();
        let Some(events) = &mut self.events else { return Ok(()) };
        let value = &report.values[0];
        let fixed = [
            (format!("{name}/lr"), rate.scaled),
            (format!("{name}/loss"), value.loss),
            (format!("{name}/grad/total_norm"), report.gradient_norm),
            (format!("{name}/throughput/batches_per_second"), speed),
        ];
        let terms = value.terms.iter().map(|t| (format!("{name}/{}", t.name), t.value));
        let scalars: Vec<(String, f64)> = fixed.into_iter().chain(terms).collect();
        events.scalars(done, scalars.iter().map(|(name, x)| (name.as_str(), *x)))
    }

    fn checkpoint(&self, step: u64, draws: u64, snapshot: Snapshot) -> Checkpoint {
        let branches = self.setup.input.branches.iter().zip(&self.setup.branches);
        let header =
            |(branch, setup): (&super::input::BranchInput, &crate::train::setup::Setup)| BranchHeader {
                name: branch.name.clone(),
                model: branch.full["model"].clone(),
                shares: branch.shares.clone(),
                statistics: setup.model.stats.clone(),
                min_distance: setup.min_distance,
            };
        let about = MultiRun {
            input: self.full.clone(),
            branches: branches.map(header).collect(),
            lcurve_bytes: self.lcurve.bytes_written(),
        };
        MultiState::new(step, draws, snapshot, about).into_checkpoint()
    }

    fn synced_first(&self) -> Result<Option<File>> {
        self.lcurve.to_sync().map(Some)
    }

    fn close(&mut self) -> Result<()> {
        self.events.as_mut().map_or(Ok(()), |events| events.flush())
    }

    fn end_lines(&self) -> Vec<String> {
        let training = &self.setup.input.common().training;
        let data = &self.setup.branches[0].data;
        let data = data.validation.as_ref().unwrap_or(&data.training);
        let lines = messages::end_lines(
            &training.save_ckpt,
            &training.disp_file,
            Some(Path::new(&data.systems[0].path)),
        );
        let head = format!("dp freeze --head {}", messages::quoted(Path::new(self.branch_name(0))));
        lines.into_iter().map(|line| line.replacen("dp freeze", &head, 1)).collect()
    }

    fn continue_command(&self) -> String {
        self.continues.clone()
    }
}
