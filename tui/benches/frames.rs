//! The cost of a frame: a key's update and the drawing after it, on files of many tensors. `make bench` runs it.
//!
//! A terminal shows 60 frames a second; so update and drawing together must stay well below 16 ms.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use wcodec::{Dtype, EncodeOptions, MemorySource, encode};
use wcodec_tui::action::Action;
use wcodec_tui::draw::{self, theme::Look};
use wcodec_tui::model::FileModel;
use wcodec_tui::state::State;
use wcodec_tui::update::update;

/// A container with so many decoder blocks of seven matrices and two norms, all of them small.
fn write(path: &Path, blocks: usize) {
    let mut source = MemorySource::new();
    let names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj"];
    let names = [&names[..], &["mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]].concat();
    for block in 0..blocks {
        for name in &names {
            let bytes: Vec<u8> = (0..64u16).flat_map(|i| half::bf16::from_f32(f32::from(i)).to_le_bytes()).collect();
            let name = format!("model.layers.{block}.{name}.weight");
            source.push(name, Dtype::BF16, vec![8, 8], bytes.into()).expect("names differ");
        }
    }
    encode(&source, path, &EncodeOptions::default(), &mut |_| Ok(())).expect("the folder can be written");
}

/// Presses a key; `~` stands for Esc.
fn press(state: &mut State, key: char) {
    let code = if key == '~' { KeyCode::Esc } else { KeyCode::Char(key) };
    black_box(update(state, Action::Key(KeyEvent::new(code, KeyModifiers::NONE))));
}

fn frames(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("there is a folder for temporary files");
    for (what, blocks) in [("198 tensors", 22), ("50,004 tensors", 5_556)] {
        let path = dir.path().join(format!("{blocks}.wcodec"));
        write(&path, blocks);
        let mut group = c.benchmark_group(what);
        group.sample_size(20);
        group.bench_function("open", |b| b.iter(|| FileModel::open(&path).expect("it was just written")));
        let file = Arc::new(FileModel::open(&path).expect("it was just written"));
        group.bench_function("first state", |b| {
            b.iter(|| State::new(file.clone(), None, Look::default(), (200, 60)));
        });
        for (columns, rows) in [(80, 24), (200, 60)] {
            let mut state = State::new(file.clone(), None, Look::default(), (columns, rows));
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test backend never fails");
            let mut frame = |state: &State| {
                terminal.draw(|frame| draw::draw(frame, state)).expect("a test backend never fails");
            };
            group.bench_function(format!("scroll {columns}x{rows}"), |b| {
                let mut keys = "jjjddduk".chars().cycle();
                b.iter(|| {
                    press(&mut state, keys.next().expect("it goes round"));
                    frame(&state);
                });
            });
            for (name, keys) in [("sort", "s"), ("fold all", "z"), ("type in the search box", "/q_proj~")] {
                group.bench_function(format!("{name} {columns}x{rows}"), |b| {
                    let mut keys = keys.chars().cycle();
                    b.iter(|| {
                        press(&mut state, keys.next().expect("it goes round"));
                        frame(&state);
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, frames);
criterion_main!(benches);
