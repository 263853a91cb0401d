//! A page as SVG: text stays text, so that a journal can change its typeface.

use super::canvas::{Anchor, Canvas, Color, Shape};
use std::fmt::Write;

pub fn text(canvas: &Canvas) -> String {
    let [width, height] = canvas.size;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for shape in &canvas.shapes {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", element(shape));
    }
    out + "</svg>\n"
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Line { points, color, width, is_dashed } => {
            let points: Vec<String> =
                points.iter().map(|[x, y]| format!("{},{}", short(*x), short(*y))).collect();
            let dashes = if *is_dashed { " stroke-dasharray=\"4 3\"" } else { "" };
            format!(
                "<polyline points=\"{}\" fill=\"none\" {}stroke-width=\"{width}\" stroke-linejoin=\"round\"{dashes}/>",
                points.join(" "),
                paint("stroke", *color)
            )
        }
        Shape::Box { at: [x, y], size: [width, height], color } => format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}/>",
            short(*x),
            short(*y),
            short(*width),
            short(*height),
            paint("fill", *color)
        ),
        Shape::Text { at: [x, y], text, size, anchor, turned } => {
            let (x, y) = (short(*x), short(*y));
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            let turn = if *turned { format!(" transform=\"rotate(-90 {x} {y})\"") } else { String::new() };
            let text = escaped(text);
            format!(
                "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\"{turn}>{text}</text>"
            )
        }
    }
}

fn paint(what: &str, color: Color) -> String {
    let [r, g, b] = color.rgb;
    let mut out = format!("{what}=\"#{r:02x}{g:02x}{b:02x}\" ");
    if color.opacity < 1.0 {
        let _ = write!(out, "{what}-opacity=\"{}\" ", color.opacity);
    }
    out
}

/// A hundredth of a pixel is finer than any eye.
fn short(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Text between tags. Control characters are not allowed in XML at all.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_cannot_leave_their_text() {
        let mut canvas = Canvas::new([10.0, 10.0]);
        canvas.text([1.0, 2.0], "</text><script>&\u{1b}", 8.0, Anchor::Start);
        let text = text(&canvas);
        assert!(text.contains("&lt;/text&gt;&lt;script&gt;&amp; </text>"), "{text}");
    }
}
