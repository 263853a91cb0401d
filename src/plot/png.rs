//! A page as PNG, in a typeface that is part of the program: what is on the machine does not matter.

use super::canvas::{Anchor, Canvas, Color, Shape};
use crate::err;
use crate::error::Result;
use tiny_skia::{
    FillRule, LineCap, LineJoin, Paint, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform,
};
use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// Pixels of an image at most, each way: what viewers can open.
const MOST: f64 = 16_000.0;

pub fn bytes(canvas: &Canvas, scale: f64) -> Result<Vec<u8>> {
    let size = canvas.size.map(|x| (x * scale).ceil());
    if !size.iter().all(|x| (1.0..=MOST).contains(x)) {
        return Err(
            err!("an image of {} x {} pixels is too large", size[0], size[1]).help("write an .svg instead")
        );
    }
    let mut image = Pixmap::new(size[0] as u32, size[1] as u32).expect("the size was checked");
    image.fill(tiny_skia::Color::WHITE);
    let face =
        Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0).expect("the typeface is part of the program");
    let page = Transform::from_scale(scale as f32, scale as f32);
    for shape in &canvas.shapes {
        draw(&mut image, shape, page, &face);
    }
    image.encode_png().map_err(|e| err!("cannot make a PNG: {e}"))
}

fn draw(image: &mut Pixmap, shape: &Shape, page: Transform, face: &Face) {
    match shape {
        Shape::Line { points, color, width, is_dashed } => {
            let mut path = PathBuilder::new();
            for (i, [x, y]) in points.iter().enumerate() {
                let to = if i == 0 { PathBuilder::move_to } else { PathBuilder::line_to };
                to(&mut path, *x as f32, *y as f32);
            }
            let dash = if *is_dashed { StrokeDash::new(vec![4.0, 3.0], 0.0) } else { None };
            let (line_cap, line_join) = (LineCap::Butt, LineJoin::Round);
            let stroke = Stroke { width: *width as f32, dash, line_cap, line_join, ..Stroke::default() };
            // A line of one point has no path, and nothing to draw.
            if let Some(path) = path.finish() {
                image.stroke_path(&path, &paint(*color), &stroke, page, None);
            }
        }
        Shape::Box { at, size, color } => {
            let rect = Rect::from_xywh(at[0] as f32, at[1] as f32, size[0] as f32, size[1] as f32);
            if let Some(rect) = rect {
                image.fill_rect(rect, &paint(*color), page, None);
            }
        }
        Shape::Text { at, text, size, anchor, turned } => {
            let scale = *size as f32 / f32::from(face.units_per_em());
            let mut path = PathBuilder::new();
            let width = outline(face, text, &mut path);
            let before = match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => width / 2.0,
                Anchor::End => width,
            };
            let place = page
                .pre_translate(at[0] as f32, at[1] as f32)
                .pre_concat(if *turned { Transform::from_rotate(-90.0) } else { Transform::identity() })
                .pre_scale(scale, -scale)
                .pre_translate(-before, 0.0);
            if let Some(path) = path.finish() {
                image.fill_path(&path, &paint(super::canvas::BLACK), FillRule::Winding, place, None);
            }
        }
    }
}

fn paint(color: Color) -> Paint<'static> {
    let [r, g, b] = color.rgb;
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(r, g, b, (color.opacity * 255.0).round() as u8);
    paint
}

/// Adds the outlines of a text to a path, in units of the typeface; returns its width.
fn outline(face: &Face, text: &str, path: &mut PathBuilder) -> f32 {
    let mut x = 0.0;
    for c in text.chars() {
        // The typeface has raised digits, and no raised minus.
        let (c, scale, raised) = if c == '⁻' { ('−', 0.6, 0.3) } else { (c, 1.0, 0.0) };
        // What it does not have shows as its box.
        let glyph = face.glyph_index(c).unwrap_or(GlyphId(0));
        let y = raised * f32::from(face.units_per_em());
        face.outline_glyph(glyph, &mut Pen { path, x, y, scale });
        x += scale * f32::from(face.glyph_hor_advance(glyph).unwrap_or(0));
    }
    x
}

/// Draws a glyph at its place in the line.
struct Pen<'a> {
    path: &'a mut PathBuilder,
    x: f32,
    y: f32,
    scale: f32,
}

impl Pen<'_> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + self.scale * x, self.y + self.scale * y)
    }
}

impl OutlineBuilder for Pen<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }
    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }
    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }
    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }
    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typeface_has_what_figures_write() {
        let face = Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0).unwrap();
        for c in "0123456789eV/Åatom %−⁰¹²³⁴⁵⁶⁷⁸⁹×·".chars() {
            assert!(face.glyph_index(c).is_some(), "{c}");
        }
    }

    #[test]
    fn an_absurd_size_is_refused() {
        assert!(bytes(&Canvas::new([1e6, 10.0]), 1.0).is_err());
    }
}
