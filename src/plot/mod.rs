//! Figures of runs, as SVG and PNG: learning curves, predictions beside labels, where the time went.

mod canvas; // lines, areas and text on a page
mod scale; // linear and logarithmic axes
mod panel; // one pair of axes and what is drawn in it
mod svg;
mod png;
pub mod source; // what a file has to show
mod figures; // which panels a figure has

pub use figures::{Options, curves, parity, time_split};

use crate::err;
use crate::error::{IoContext, Result};
use crate::export::atomic;
use canvas::Canvas;
use std::io::Write;
use std::path::Path;

/// A page that can be written in any of [`FORMATS`].
pub struct Figure(Canvas);

/// Endings of the files that a figure can be written to.
pub const FORMATS: [&str; 2] = ["svg", "png"];

/// Whether a figure can be written to a file of this name.
pub fn check_format(path: &Path) -> Result<()> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some(ending) if FORMATS.contains(&ending) => Ok(()),
        _ => Err(err!("{}: a figure is written as .svg or .png", path.display())
            .help(format!("for example: -o {}", path.with_extension("svg").display()))),
    }
}

impl Figure {
    /// The text of an SVG file.
    pub fn svg(&self) -> String {
        svg::text(&self.0)
    }

    /// The bytes of a PNG file, with so many pixels for each unit of the page (96 to an inch).
    pub fn png(&self, scale: f64) -> Result<Vec<u8>> {
        png::bytes(&self.0, scale)
    }

    /// Writes the figure in the format that the name asks for; PNG with 300 pixels to an inch.
    pub fn write(&self, path: &Path) -> Result<()> {
        check_format(path)?;
        let bytes = match path.extension().and_then(|ending| ending.to_str()) {
            Some("png") => self.png(300.0 / 96.0)?,
            _ => self.svg().into_bytes(),
        };
        atomic::write(path, |file| file.write_all(&bytes).io("write", path))
    }
}
