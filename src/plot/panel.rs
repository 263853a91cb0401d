//! One pair of axes and what is drawn in it.

use super::canvas::{Anchor, BLACK, Canvas, Color, GREY};
use super::scale::Scale;
use std::collections::BTreeMap;

/// Between the edges of a panel and its axes.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 14.0;
const ABOVE: f64 = 26.0;
const BELOW: f64 = 42.0;
/// Heights of letters.
const SMALL: f64 = 10.0;
const NORMAL: f64 = 11.5;
/// The side of what stands for one or more points: a whole number of pixels where an inch has 300.
const DOT: f64 = 1.6;

pub struct Axis {
    pub label: String,
    pub scale: Scale,
}

pub enum Layer {
    Curve {
        points: Vec<[f64; 2]>,
        color: Color,
        width: f64,
        is_dashed: bool,
    },
    /// However many there are, no more is drawn than the eye can see: places with more points are darker.
    Points {
        points: Vec<[f64; 2]>,
        color: Color,
    },
    /// Bars of a histogram: `edges` is one longer than `heights`.
    Bars {
        edges: Vec<f64>,
        heights: Vec<f64>,
        color: Color,
    },
}

pub struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub layers: Vec<Layer>,
    /// Lines of text in the upper left corner.
    pub notes: Vec<String>,
}

/// Where the axes stand on the page.
struct Frame<'a> {
    panel: &'a Panel,
    at: [f64; 2],
    size: [f64; 2],
}

impl Panel {
    /// Draws the panel with its labels into a part of the page.
    pub fn draw(&self, canvas: &mut Canvas, at: [f64; 2], size: [f64; 2]) {
        let frame = Frame {
            panel: self,
            at: [at[0] + LEFT, at[1] + ABOVE],
            size: [size[0] - LEFT - RIGHT, size[1] - ABOVE - BELOW],
        };
        frame.axes(canvas);
        for layer in &self.layers {
            frame.layer(canvas, layer);
        }
        frame.border(canvas);
        for (i, note) in self.notes.iter().enumerate() {
            let y = frame.at[1] + 14.0 + 13.0 * i as f64;
            canvas.text([frame.at[0] + 7.0, y], note, SMALL, Anchor::Start);
        }
    }
}

impl Frame<'_> {
    /// The place of a point on the page; None for what the axes cannot show.
    fn place(&self, [x, y]: [f64; 2]) -> Option<[f64; 2]> {
        let (x, y) = (self.panel.x.scale.place(x)?, self.panel.y.scale.place(y)?);
        Some([self.at[0] + x * self.size[0], self.at[1] + (1.0 - y) * self.size[1]])
    }

    fn axes(&self, canvas: &mut Canvas) {
        let ([x0, y0], [width, height]) = (self.at, self.size);
        for (place, label) in self.panel.x.scale.ticks(4) {
            let x = x0 + place * width;
            canvas.line(vec![[x, y0], [x, y0 + height]], GREY, 0.6);
            canvas.text([x, y0 + height + 15.0], label, SMALL, Anchor::Middle);
        }
        for (place, label) in self.panel.y.scale.ticks(5) {
            let y = y0 + (1.0 - place) * height;
            canvas.line(vec![[x0, y], [x0 + width, y]], GREY, 0.6);
            canvas.text([x0 - 5.0, y + 3.5], label, SMALL, Anchor::End);
        }
        canvas.text([x0 + width / 2.0, y0 + height + 33.0], &self.panel.x.label, NORMAL, Anchor::Middle);
        canvas.turned_text([x0 - 51.0, y0 + height / 2.0], &self.panel.y.label, NORMAL);
        canvas.text([x0, y0 - 8.0], &self.panel.title, NORMAL, Anchor::Start);
    }

    fn border(&self, canvas: &mut Canvas) {
        let ([x, y], [width, height]) = (self.at, self.size);
        let corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]];
        canvas.line(corners.to_vec(), BLACK, 0.8);
    }

    fn layer(&self, canvas: &mut Canvas, layer: &Layer) {
        match layer {
            Layer::Curve { points, color, width, is_dashed } => {
                // A value that is missing interrupts the curve.
                for piece in points.split(|point| self.place(*point).is_none()) {
                    let piece: Vec<_> = piece.iter().filter_map(|point| self.place(*point)).collect();
                    match (piece.len(), is_dashed) {
                        (0, _) => {}
                        (1, _) => canvas.fill([piece[0][0] - 1.5, piece[0][1] - 1.5], [3.0, 3.0], *color),
                        (_, true) => canvas.dashes(self.thinned(piece), *color, *width),
                        (_, false) => canvas.line(self.thinned(piece), *color, *width),
                    }
                }
            }
            Layer::Points { points, color } => self.points(canvas, points, *color),
            Layer::Bars { edges, heights, color } => {
                for (pair, height) in edges.windows(2).zip(heights) {
                    let corners = (self.place([pair[0], *height]), self.place([pair[1], 0.0]));
                    if let (Some([left, top]), Some([right, bottom])) = corners {
                        canvas.fill([left, top], [right - left, bottom - top], *color);
                    }
                }
            }
        }
    }

    /// Where many points of a curve share a pixel, the first, lowest, highest and last of them are enough.
    fn thinned(&self, points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
        if (points.len() as f64) < 4.0 * self.size[0] {
            return points;
        }
        let mut kept = Vec::new();
        for column in points.chunk_by(|a, b| a[0].floor() == b[0].floor()) {
            let y = |i: &usize| column[*i][1];
            let lowest = (0..column.len()).min_by(|a, b| y(a).total_cmp(&y(b))).unwrap_or(0);
            let highest = (0..column.len()).max_by(|a, b| y(a).total_cmp(&y(b))).unwrap_or(0);
            let mut which = [0, lowest, highest, column.len() - 1];
            which.sort_unstable();
            kept.extend(which.map(|i| column[i]));
        }
        kept.dedup();
        kept
    }

    fn points(&self, canvas: &mut Canvas, points: &[[f64; 2]], color: Color) {
        let mut cells: BTreeMap<[i64; 2], u32> = BTreeMap::new();
        for place in points.iter().filter_map(|point| self.place(*point)) {
            *cells.entry(place.map(|x| (x / DOT).floor() as i64)).or_default() += 1;
        }
        let most = cells.values().max().map_or(1.0, |n| f64::from(*n));
        for (cell, count) in cells {
            let shade = if most > 1.0 { f64::from(count).ln() / most.ln() } else { 1.0 };
            let opacity = (100.0 * (0.35 + 0.65 * shade)).round() / 100.0;
            canvas.fill(cell.map(|k| k as f64 * DOT), [DOT, DOT], color.faint(opacity));
        }
    }
}
