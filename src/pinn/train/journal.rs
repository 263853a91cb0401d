//! What rank 0 writes of a PiNN run: log lines, TensorBoard events of training and of evaluation, `eval.log`, checkpoints.

use super::early_stop::EarlyStop;
use super::learner::MetricNames;
use super::state::{PinnRun, PinnState};
use crate::checkpoint::{Checkpoint, Companion};
use crate::err;
use crate::error::{IoContext, Result};
use crate::pinn::log as pinn_log;
use crate::pinn::tensorflow::Twin;
use crate::report::lcurve::Row;
use crate::report::messages::same_command;
use crate::report::number::exp;
use crate::report::progress::Note;
use crate::report::tensorboard::EventWriter;
use crate::train::learner::{Snapshot, StepRate, StepReport};
use crate::train::run::Journal;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// The files of a run in its `model_dir`.
pub struct PinnJournal {
    pub model_dir: PathBuf,
    /// `params.yml` as JSON, with all that was worked out.
    pub params: serde_json::Value,
    pub events: EventWriter,
    /// Opened at the first evaluation.
    pub eval_events: Option<EventWriter>,
    pub names: MetricNames,
    pub early_stop: EarlyStop,
    /// Writes PiNN's own checkpoints beside ours.
    pub twin: Option<Arc<Twin>>,
}

impl PinnJournal {
    /// One line of `eval.log`, in the form that `pinn log` prints.
    fn eval_line(&self, done: u64, shown: &[(&str, f64)]) -> Result<()> {
        let path = self.model_dir.join("eval.log");
        let mut rmse: Vec<_> = shown.iter().filter(|(name, _)| name.contains("RMSE")).collect();
        rmse.sort_by_key(|(name, _)| *name);
        let mut text = String::new();
        if !path.exists() {
            let names: Vec<&str> = rmse.iter().map(|(name, _)| *name).collect();
            text += &format!("# Step  {}\n", names.join("  "));
        }
        let values: Vec<f64> = rmse.iter().map(|(_, x)| *x).collect();
        text += &pinn_log::row(done, &values, &pinn_log::NumberFormat::default());
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).io("open", &path)?;
        file.write_all(text.as_bytes()).io("write", &path)
    }
}

impl Journal for PinnJournal {
    fn row(&mut self, row: &Row) -> Result<Option<Note>> {
        // The loop shows the root of the loss first.
        let loss = row.train[0] * row.train[0];
        log::info!("step {:9}: loss = {}, lr = {}", row.step, exp(loss, 6), exp(row.lr, 3));
        Ok(Some(Note { text: format!("loss {loss:.3e}"), value: loss }))
    }

    fn record(&mut self, done: u64, rate: StepRate, report: &StepReport, speed: f64) -> Result<()> {
        let value = &report.values[0];
        let terms = value.terms.iter().map(|t| (format!("METRICS/{}", t.name), t.value));
        let fixed = [
            ("loss".to_string(), value.loss),
            ("learning_rate".to_string(), rate.scaled),
            ("gradient_norm".to_string(), report.gradient_norm),
            ("global_step/sec".to_string(), speed),
        ];
        let all: Vec<(String, f64)> = fixed.into_iter().chain(terms).collect();
        self.events.scalars(done, all.iter().map(|(name, x)| (name.as_str(), *x)))
    }

    fn evaluated(&mut self, done: u64, values: &[f64]) -> Result<bool> {
        let names = self.names.get().cloned().unwrap_or_default();
        if let Some(unknown) =
            self.early_stop.metrics().find(|metric| !names.iter().any(|name| name == metric))
        {
            return Err(err!("--early-stop: there is no metric \"{unknown}\"")
                .help(format!("there are {}", names.join(", "))));
        }
        let shown: Vec<(&str, f64)> = names.iter().map(String::as_str).zip(values.iter().copied()).collect();
        let line: Vec<String> = shown.iter().map(|(name, x)| format!("{name} = {}", exp(*x, 6))).collect();
        log::info!("evaluation after step {done}: {}", line.join(", "));
        self.eval_line(done, &shown)?;
        if self.eval_events.is_none() {
            self.eval_events = Some(EventWriter::create(&self.model_dir.join("eval"))?);
        }
        if let Some(events) = &mut self.eval_events {
            let tag = |name: &str| if name == "loss" { name.to_string() } else { format!("METRICS/{name}") };
            let tagged: Vec<(String, f64)> = shown.iter().map(|(name, x)| (tag(name), *x)).collect();
            events.scalars(done, tagged.iter().map(|(name, x)| (name.as_str(), *x)))?;
            events.flush()?;
        }
        Ok(self.early_stop.enough(done, &shown))
    }

    fn checkpoint(&self, step: u64, draws: u64, snapshot: Snapshot) -> Checkpoint {
        PinnState::new(step, draws, snapshot, PinnRun(self.params.clone())).into_checkpoint()
    }

    fn companion(&self) -> Option<Arc<dyn Companion>> {
        self.twin.clone().map(|twin| twin as Arc<dyn Companion>)
    }

    fn close(&mut self) -> Result<()> {
        self.events.flush()?;
        self.eval_events.as_mut().map_or(Ok(()), |events| events.flush())
    }

    fn end_lines(&self) -> Vec<String> {
        let dir = self.model_dir.display();
        vec![format!("Trained model: {dir}"), format!("Errors of the evaluations: {dir}/eval.log")]
    }

    fn continue_command(&self) -> String {
        format!("{} (it goes on from {})", same_command(), self.model_dir.display())
    }
}
