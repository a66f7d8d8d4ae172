//! Texts that are cut, bars, and pens.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use wcodec_tui::draw::chart::{GUTTER, room};
use wcodec_tui::draw::text::{
    change, clean, cut, cut_left, cut_middle, figure, shape, short_label, short_name, size, width,
};
use wcodec_tui::draw::{Canvas, Chart, Depth, Look, Page, Style, Theme, bar, diverging};

#[test]
fn what_is_cut_fits() {
    let texts =
        ["", "a", "größe.層.weight", "model.layers.12.self_attn.q_proj.weight", "層層層層層層層", "....", "1.2.3.4"];
    for ascii in [false, true] {
        let look = Look { ascii, ..Look::default() };
        for text in texts {
            let text = clean(look, text);
            assert!(!ascii || text.is_ascii());
            for room in 0..50 {
                for f in [cut, cut_left, cut_middle, short_name, short_label] {
                    let short = f(look, &text, room);
                    assert!(width(&short) <= room, "{text} in {room}: {short}");
                    assert!(width(&text) > room || short == text, "{text} in {room}: {short}");
                }
            }
        }
    }
}

#[test]
fn sizes_are_those_of_the_command() {
    assert_eq!(size(1024), "1.00 KiB");
    assert_eq!(size(1_048_575), "1024.00 KiB");
    assert_eq!(size(3 << 30), "3.00 GiB");
    assert_eq!(size(u64::MAX), "16384.00 PiB");
    assert_eq!(shape(&[4096, 192]), "4096x192");
    assert_eq!(shape(&[]), "scalar");
    assert_eq!([figure(2.9414), figure(51.333), figure(512.04), figure(10240.0)], ["2.941", "51.33", "512.0", "10240"]);
    assert_eq!([change(0.0214), change(-0.5), change(12.0)], ["+2.1 %", "-50.0 %", "+1200 %"]);
}

#[test]
fn bars_take_no_more_than_their_room() {
    for ascii in [false, true] {
        let look = Look { ascii, ..Look::default() };
        for columns in 0..20 {
            for part in [f64::NAN, -1.0, 0.0, 0.01, 0.3, 0.999, 1.0, 7.0, f64::INFINITY] {
                assert!(width(&bar(look, part, columns)) <= columns);
            }
            assert_eq!(width(&bar(look, 1.0, columns)), columns);
            for part in [f64::NAN, -7.0, -1.0, -0.3, -0.01, 0.0, 0.6, 1.0, 7.0] {
                assert!(width(&diverging(look, part, columns)) <= columns.max(1));
            }
        }
    }
}

#[test]
fn pens_stay_in_their_area() {
    let area = Rect::new(2, 1, 6, 1);
    let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 3));
    for (a, row) in [(area, 0), (area, 1), (area, 100), (Rect::new(50, 50, 9, 9), 0), (Rect::new(9, 2, 0, 0), 0)] {
        let mut canvas = Canvas::new(&mut buffer, a, Look::default());
        let mut pen = canvas.pen(row);
        pen.number("123456789", 3, Style::new())
            .put("abcdefghijkl", Style::new())
            .skip(70_000)
            .at_end("x", Style::new());
        pen.fill(Style::new());
    }
    let text: String = buffer.content().iter().map(|c| c.symbol()).collect();
    assert_eq!(text, "            12345a            ");
}

#[test]
fn charts_fit_their_page() {
    for width in 0..60 {
        for ascii in [false, true] {
            let mut page = Page::new(Look { ascii, ..Look::default() }, width);
            let bars = vec![0.5; room(&page)];
            let labels = [(0.0, "0.001".to_owned()), (1.0, "1.000".to_owned()), (0.5, "0.5".to_owned())];
            let chart = Chart {
                bars: &bars,
                columns: 1,
                gap: 1,
                height: 3,
                top: "1,234,567,890".to_owned(),
                bottom: String::new(),
                marks: &[0.0, 0.5, 1.0, f64::NAN],
                labels: &labels,
            };
            chart.draw(&mut page);
            assert_eq!(page.lines.len(), Chart::rows(3));
            assert!(page.lines.iter().all(|l| l.width() <= width.max(GUTTER + 1)), "{width}");
            assert!(!ascii || page.lines.iter().all(|l| l.to_string().is_ascii()));
        }
    }
}

#[test]
fn heat_has_a_colour_for_every_figure_where_there_are_colours() {
    for theme in Theme::ALL {
        for depth in [Depth::Sixteen, Depth::Palette, Depth::True] {
            let look = Look { theme, depth, ascii: false };
            for part in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 0.5, 1.0, 7.0, f64::INFINITY] {
                let found = look.heat(part);
                assert_eq!(found.is_some(), theme != Theme::Plain && depth != Depth::Sixteen);
            }
            assert!(look.heat(0.0).is_none() || look.heat(0.0) != look.heat(1.0));
        }
    }
}
