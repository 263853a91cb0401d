//! A text file that holds structures one after the other, each a block of lines.

use super::file::{Block, ByteFile};
use super::sample::{Keys, Sample};
use super::source::Source;
use crate::error::Result;
use std::path::Path;

/// Reads a structure from the text of its block; the number is that of its first line in the file.
pub type ParseFn = fn(&str, u64) -> Result<Sample>;

/// A data set in a text file. Blocks were found when it was opened, and are read when they are asked for.
pub struct TextFile {
    file: ByteFile,
    blocks: Vec<Block>,
    /// What a block is called in messages.
    what: &'static str,
    parse: ParseFn,
    keys: Keys,
}

impl TextFile {
    /// Labels are those of the first block. There is at least one.
    pub fn new(path: &Path, blocks: Vec<Block>, what: &'static str, parse: ParseFn) -> Result<Self> {
        let mut set = TextFile { file: ByteFile::new(path)?, blocks, what, parse, keys: Keys::default() };
        set.keys = set.sample(0, Sample::rounded)?.keys();
        Ok(set)
    }

    fn sample(&self, index: usize, round: fn(Sample) -> Sample) -> Result<Sample> {
        let block = self.blocks[index];
        let text = block.read(&self.file)?;
        let sample = (self.parse)(&text, block.line).and_then(|sample| {
            let sample = round(sample);
            sample.check().map_err(|e| e.at(format_args!("line {}", block.line)))?;
            Ok(sample)
        });
        sample.map_err(|e| e.at(self.block_place(index)))
    }

    fn block_place(&self, index: usize) -> String {
        format!("{}: {} {index}", self.file.path().display(), self.what)
    }
}

impl Source for TextFile {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn read(&self, index: usize) -> Result<Sample> {
        self.sample(index, Sample::rounded)?.restricted(self.keys).map_err(|e| e.at(self.block_place(index)))
    }

    fn read_as_stored(&self, index: usize) -> Result<Sample> {
        self.sample(index, |sample| sample)
    }

    fn keys(&self) -> Keys {
        self.keys
    }

    fn place(&self) -> String {
        self.file.path().display().to_string()
    }
}
