//! The file of an LMDB database: where the value of each key stands.
//!
//! Pages of one size. The first two describe the database, and the one with the later transaction counts. From its root leads a tree
//! of branch pages to leaf pages, whose nodes hold keys in order; a long value stands on pages of its own. The tree is walked once, and values
//! are then read by their place.

use crate::error::{IoContext, Result};
use crate::{bail, err};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
/// Bytes of a page before its content.
const HEADER: usize = 16;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Of a node: the value stands on pages of its own.
const BIG: u16 = 1;
/// Of a node: the value is a database of its own, or one of several values of the key.
const OTHER: u16 = 2 | 4;
/// What the root is where there is no page.
const NO_PAGE: u64 = u64::MAX;
/// Sizes that a page may have.
const PAGES: std::ops::RangeInclusive<usize> = 256..=65_536;
/// A tree of this depth would have more pages than there are.
const DEEPEST: usize = 32;

/// Where a value stands in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    pub length: usize,
}

/// An LMDB file that is read.
pub struct Tree {
    path: PathBuf,
    file: File,
    page: usize,
    n_pages: u64,
    root: u64,
}

/// Whole numbers of some bytes.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + N)?;
    Some(bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

/// What one of the first pages says: transaction, size of a page, root.
fn described(bytes: &[u8]) -> Option<(u64, usize, u64)> {
    const DATABASES: usize = HEADER + 24;
    const DATABASE: usize = 48;
    let is_it = number::<4>(bytes, HEADER)? == u64::from(MAGIC)
        && number::<4>(bytes, HEADER + 4)? & 0xffff == u64::from(VERSION);
    let page = number::<4>(bytes, DATABASES)? as usize;
    let root = number::<8>(bytes, DATABASES + DATABASE + 40)?;
    let transaction = number::<8>(bytes, DATABASES + 2 * DATABASE + 8)?;
    is_it.then_some((transaction, page, root))
}

impl Tree {
    pub fn open(path: &Path) -> Result<Tree> {
        let file = File::open(path).io("open", path)?;
        let size = file.metadata().io("look at", path)?.len();
        let broken = || {
            err!("{}: this is no LMDB database, or a damaged one", path.display())
                .help("a data set is a folder with the data.mdb that LMDB wrote on a machine of this kind")
        };
        let mut first = vec![0; 256.min(size as usize)];
        file.read_exact_at(&mut first, 0).io("read", path)?;
        let first = described(&first).ok_or_else(broken)?;
        if !PAGES.contains(&first.1) || !first.1.is_power_of_two() {
            return Err(broken());
        }
        let mut second = vec![0; 256];
        let second = match file.read_exact_at(&mut second, first.1 as u64) {
            Ok(()) => described(&second).filter(|second| second.1 == first.1),
            Err(_) => None,
        };
        let (_, page, root) = second.filter(|second| second.0 > first.0).unwrap_or(first);
        Ok(Tree { path: path.to_owned(), file, page, n_pages: size / page as u64, root })
    }

    /// Calls `visit` with every key and the place of its value, by rising key.
    pub fn walk(&self, visit: &mut dyn FnMut(&[u8], Place) -> Result<()>) -> Result<()> {
        let mut left = self.n_pages;
        match self.root {
            NO_PAGE => Ok(()),
            root => self.walk_page(root, 0, &mut left, visit),
        }
    }

    fn broken(&self, page: u64) -> crate::Error {
        err!("{}: page {page} is damaged", self.path.display()).help("copy the data set again")
    }

    /// `left` pages may still be looked at: a damaged tree may be a ring.
    fn walk_page(
        &self,
        number_of_page: u64,
        depth: usize,
        left: &mut u64,
        visit: &mut dyn FnMut(&[u8], Place) -> Result<()>,
    ) -> Result<()> {
        let broken = || self.broken(number_of_page);
        if *left == 0 || depth > DEEPEST || number_of_page >= self.n_pages {
            return Err(broken());
        }
        *left -= 1;
        let start = number_of_page * self.page as u64;
        let mut page = vec![0; self.page];
        self.file.read_exact_at(&mut page, start).io("read", &self.path)?;
        let flags = number::<2>(&page, 10).ok_or_else(broken)? as u16;
        let lower = number::<2>(&page, 12).ok_or_else(broken)? as usize;
        for k in 0..lower.saturating_sub(HEADER) / 2 {
            let at = number::<2>(&page, HEADER + 2 * k).ok_or_else(broken)? as usize;
            let [low, high, of_node, key] =
                [0, 2, 4, 6].map(|offset| number::<2>(&page, at + offset).unwrap_or(u64::MAX));
            if key == u64::MAX {
                return Err(broken());
            }
            if flags & BRANCH != 0 {
                self.walk_page(low | high << 16 | of_node << 32, depth + 1, left, visit)?;
                continue;
            }
            if flags & LEAF == 0 {
                return Err(broken());
            }
            let value = at + 8 + key as usize;
            let name = page.get(at + 8..value).ok_or_else(broken)?;
            if of_node as u16 & OTHER != 0 {
                bail!(
                    "{}: {:?} is a database within the database, wanted frames",
                    self.path.display(),
                    String::from_utf8_lossy(name)
                );
            }
            let length = (low | high << 16) as usize;
            let offset = match of_node as u16 & BIG {
                0 => start + value as u64,
                _ => {
                    let first = number::<8>(&page, value).ok_or_else(broken)?;
                    first.checked_mul(self.page as u64).ok_or_else(broken)? + HEADER as u64
                }
            };
            if offset.saturating_add(length as u64) > self.n_pages * self.page as u64 {
                return Err(broken());
            }
            visit(name, Place { offset, length })?;
        }
        Ok(())
    }

    /// The value at a place.
    pub fn read(&self, place: Place) -> Result<Vec<u8>> {
        let mut bytes = vec![0; place.length];
        self.file.read_exact_at(&mut bytes, place.offset).io("read", &self.path)?;
        Ok(bytes)
    }
}
