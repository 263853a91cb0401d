//! What a page holds. Lengths are pixels of 1/96 inch, y points downwards.

/// A colour by its red, green and blue parts, and how opaque it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Color {
    pub rgb: [u8; 3],
    pub opacity: f64,
}

impl Color {
    pub const fn new(rgb: [u8; 3]) -> Self {
        Color { rgb, opacity: 1.0 }
    }

    pub const fn faint(self, opacity: f64) -> Self {
        Color { opacity, ..self }
    }
}

pub const BLACK: Color = Color::new([0x22, 0x22, 0x22]);
pub const GREY: Color = Color::new([0xdd, 0xdd, 0xdd]);

/// Colours that people with any kind of sight can tell apart (Okabe and Ito, 2008), for one run after another.
pub const PALETTE: [Color; 7] = [
    Color::new([0x00, 0x72, 0xb2]),
    Color::new([0xd5, 0x5e, 0x00]),
    Color::new([0x00, 0x9e, 0x73]),
    Color::new([0xcc, 0x79, 0xa7]),
    Color::new([0xe6, 0x9f, 0x00]),
    Color::new([0x56, 0xb4, 0xe9]),
    Color::new([0x55, 0x55, 0x55]),
];

/// Which part of a text stands at its point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    Line {
        points: Vec<[f64; 2]>,
        color: Color,
        width: f64,
        is_dashed: bool,
    },
    /// From the upper left corner.
    Box {
        at: [f64; 2],
        size: [f64; 2],
        color: Color,
    },
    /// On its base line; `turned` reads upwards.
    Text {
        at: [f64; 2],
        text: String,
        size: f64,
        anchor: Anchor,
        turned: bool,
    },
}

/// A white page and what stands on it, in the order of drawing.
#[derive(Debug, Clone, PartialEq)]
pub struct Canvas {
    pub size: [f64; 2],
    pub shapes: Vec<Shape>,
}

impl Canvas {
    pub fn new(size: [f64; 2]) -> Self {
        Canvas { size, shapes: Vec::new() }
    }

    pub fn line(&mut self, points: Vec<[f64; 2]>, color: Color, width: f64) {
        self.shapes.push(Shape::Line { points, color, width, is_dashed: false });
    }

    pub fn dashes(&mut self, points: Vec<[f64; 2]>, color: Color, width: f64) {
        self.shapes.push(Shape::Line { points, color, width, is_dashed: true });
    }

    pub fn fill(&mut self, at: [f64; 2], size: [f64; 2], color: Color) {
        self.shapes.push(Shape::Box { at, size, color });
    }

    pub fn text(&mut self, at: [f64; 2], text: impl Into<String>, size: f64, anchor: Anchor) {
        self.shapes.push(Shape::Text { at, text: text.into(), size, anchor, turned: false });
    }

    pub fn turned_text(&mut self, at: [f64; 2], text: impl Into<String>, size: f64) {
        let (text, anchor) = (text.into(), Anchor::Middle);
        self.shapes.push(Shape::Text { at, text, size, anchor, turned: true });
    }
}
