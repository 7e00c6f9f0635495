//! Draws figures as SVG. Its texts are text: whoever shows it has a font.

use super::figure::{Bar, Content, Figure, Series, Whose};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (860, 480);

/// Colours that are told apart by who does not tell red from green.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// What drawing can end with.
type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A figure's drawing.
///
/// # Errors
/// What the library says.
pub(super) fn svg(figure: &Figure) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        match &figure.content {
            Content::Lines { x, series } => lines(&area, figure, x, series)?,
            Content::Bars { parts, bars } => stacks(&area, figure, parts, bars)?,
        }
        area.present()?;
    }
    Ok(text)
}

fn lines(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    figure: &Figure,
    x: &str,
    series: &[Series],
) -> Drawn {
    let points = || series.iter().flat_map(|one| &one.points);
    let right = points().map(|point| point.0).fold(0.0, f64::max);
    let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.08;
    let bottom = points().map(|point| point.1).fold(0.0, f64::min) * 1.08;
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..right * 1.03, bottom..top)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(figure.y)
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (number, one) in series.iter().enumerate() {
        let colour = colour_of(series, number);
        let name = format!("{} ({})", one.name, one.whose.name());
        let points = one.points.clone();
        match one.whose {
            Whose::Ours => {
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
                    .label(name)
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2))
                    });
            }
            Whose::Model => {
                chart
                    .draw_series(DashedLineSeries::new(points, 6, 4, colour.stroke_width(1)))?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 8, y)], colour));
            }
            Whose::Paper => {
                let cross = move |at| Cross::new(at, 6, colour.stroke_width(3));
                chart
                    .draw_series(points.into_iter().map(cross))?
                    .label(name)
                    .legend(move |(x, y)| Cross::new((x + 11, y), 5, colour.stroke_width(3)));
            }
        }
    }
    chart
        .configure_series_labels()
        .position(emptiest(series, (right, bottom, top)))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// The corner in which the fewest points are.
fn emptiest(series: &[Series], (right, bottom, top): (f64, f64, f64)) -> SeriesLabelPosition {
    use SeriesLabelPosition as P;
    let (x, y) = (right / 2.0, f64::midpoint(bottom, top));
    let corners = [
        (P::LowerRight, false, false),
        (P::UpperLeft, true, true),
        (P::UpperRight, false, true),
        (P::LowerLeft, true, false),
    ];
    let points = || series.iter().flat_map(|one| &one.points);
    let inside = |left: bool, upper: bool| {
        points().filter(|point| (point.0 < x) == left && (point.1 > y) == upper).count()
    };
    let least = corners.into_iter().min_by_key(|&(_, left, upper)| inside(left, upper));
    least.map_or(P::LowerRight, |(corner, ..)| corner)
}

/// Series of one name have one colour, whoever's they are; what is only the paper's is black.
fn colour_of(series: &[Series], number: usize) -> RGBColor {
    let stem = |of: &Series| of.name.split(", ").next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = Vec::new();
    for one in series.iter().filter(|one| one.whose != Whose::Paper) {
        if !names.contains(&stem(one)) {
            names.push(stem(one));
        }
    }
    let place = names.iter().position(|name| *name == stem(&series[number]));
    place.map_or(BLACK, |place| COLOURS[place % COLOURS.len()])
}

fn stacks(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    figure: &Figure,
    parts: &[&str],
    bars: &[Bar],
) -> Drawn {
    let total = |bar: &Bar| bar.parts.iter().sum::<f64>();
    let top = bars.iter().map(total).fold(1e-9, f64::max) * 1.12;
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..bars.len() as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc(figure.y)
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (part, name) in parts.iter().enumerate() {
        let colour = COLOURS[part % COLOURS.len()];
        let one = |(place, bar): (usize, &Bar)| {
            let below: f64 = bar.parts[..part].iter().sum();
            let left = place as f64;
            let corners = [(left + 0.18, below), (left + 0.82, below + bar.parts[part])];
            Rectangle::new(corners, colour.filled())
        };
        chart
            .draw_series(bars.iter().enumerate().map(one))?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    let centred = |vertical| {
        ("sans-serif", 13).into_font().color(&BLACK).pos(Pos::new(HPos::Center, vertical))
    };
    for (place, bar) in bars.iter().enumerate() {
        let middle = place as f64 + 0.5;
        let (x, above) = chart.backend_coord(&(middle, total(bar)));
        let (_, base) = chart.backend_coord(&(middle, 0.0));
        area.draw(&Text::new(format!("{:.1}", total(bar)), (x, above - 4), centred(VPos::Bottom)))?;
        for (line, words) in (0..).zip(bar.name.split(": ")) {
            area.draw(&Text::new(words.to_owned(), (x, base + 6 + 16 * line), centred(VPos::Top)))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}
