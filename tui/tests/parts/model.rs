//! Grids, groups and trees from the names of tensors, and statements of a file.

use std::collections::BTreeMap;

use wcodec::{CALIBRATION_KEY, Dtype, EncodeOptions, MemorySource, PLAN_KEY, QUALITY_KEY, TensorInfo, encode_to_vec};
use wcodec_tui::model::order::{self, Column};
use wcodec_tui::model::rates::{NO_LAYER, layers, role_of, roles};
use wcodec_tui::model::statements::{Statement, lines, plan_line};
use wcodec_tui::model::{FileModel, Heat, Totals, Tree};

/// A file of tensors of these names and shapes.
fn file<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> FileModel {
    let (folder, mut source) = (tempfile::tempdir().unwrap(), MemorySource::new());
    for (name, shape) in tensors {
        let bytes = vec![0; shape.iter().product()];
        source.push(name.to_owned(), Dtype::U8, shape.to_vec(), bytes.into()).unwrap();
    }
    let path = folder.path().join("m.wcodec");
    let (bytes, _) = encode_to_vec(&source, &EncodeOptions::default(), &mut |_| Ok(())).unwrap();
    std::fs::write(&path, bytes).unwrap();
    FileModel::open(&path).unwrap()
}

fn heat(names: &[(&str, &[usize])]) -> Heat {
    Heat::new(&file(names.iter().copied()))
}

#[test]
fn layers_are_rows_and_roles_columns() {
    let found = heat(&[
        ("m.layers.10.self_attn.q_proj.weight", &[2, 2]),
        ("m.layers.2.input_layernorm.weight", &[2]),
        ("m.layers.2.mlp.down_proj.weight", &[2, 2]),
        ("m.layers.2.self_attn.k_proj.weight", &[2, 2]),
        ("m.layers.2.self_attn.q_proj.weight", &[2, 2]),
        ("m.norm.weight", &[2]),
        ("head", &[3, 2]),
    ]);
    let columns: Vec<&str> = found.columns.iter().map(|c| c.label.as_str()).collect();
    assert_eq!(columns, ["q", "k", "down", "norm 1"]);
    let rows: Vec<(&str, usize)> = found.rows.iter().map(|r| (r.label.as_str(), r.cells.len())).collect();
    assert_eq!(rows, [("2", 4), ("10", 1), ("head", 1), ("m.norm.weight", 1)]);
    assert_eq!((found.layers, found.is_grid()), (2, true));
    assert_eq!(found.columns[0].all.tensors.len(), 2);
    assert_eq!(found.rows[0].all.totals.elements, 14);
    for row in 0..found.rows.len() {
        for (column, cell) in &found.rows[row].cells {
            assert_eq!(found.find(cell.tensors[0]), Some((row, *column)));
        }
    }
    assert!(found.cell(1, 1).is_none() && found.cell(2, 3).is_some() && found.cell(9, 0).is_none());
}

#[test]
fn experts_share_a_cell_and_words_are_told_apart() {
    let found = heat(&[
        ("h.0.attn.c_proj.weight", &[2, 2]),
        ("h.0.attn.c_proj.bias", &[2]),
        ("h.0.mlp.c_proj.weight", &[2, 2]),
        ("h.0.mlp.experts.0.w1.weight", &[2, 2]),
        ("h.0.mlp.experts.1.w1.weight", &[2, 2]),
        ("enc.0.q_proj.weight", &[2, 2]),
    ]);
    let columns: Vec<&str> = found.columns.iter().map(|c| c.label.as_str()).collect();
    assert_eq!(columns, ["q", "attn.c", "w1", "mlp.c", "c bias"]);
    assert_eq!(found.rows[1].cell(2).map(|c| c.tensors.len()), Some(2));
    // Two stacks of layers are told apart.
    assert_eq!(found.rows.iter().map(|r| r.label.as_str()).collect::<Vec<_>>(), ["enc.0", "h.0"]);
}

#[test]
fn files_without_layers_have_no_grid() {
    assert!(!heat(&[("a", &[2]), ("b", &[2])]).is_grid());
    assert!(!heat(&[]).is_grid());
}

#[test]
fn every_letter_is_one_columns_alone() {
    for (i, column) in Column::ALL.iter().enumerate() {
        // The list itself takes j, k and q.
        assert!(!"jkq".contains(column.letter()));
        assert!(Column::ALL[..i].iter().all(|c| c.letter() != column.letter()));
    }
}

fn tensors(names: &[&str]) -> Vec<TensorInfo> {
    file(names.iter().map(|name| (*name, &[4][..]))).tensors
}

#[test]
fn layers_stand_in_natural_order_and_what_is_in_none_comes_last() {
    let names = ["a.10.w", "head", "a.2.w", "a.2.b", "b.0.experts.7.w", "a.x.w", "7", "..3"];
    let found = layers(&tensors(&names));
    let named: Vec<_> = found.iter().map(|g| (g.name.as_str(), g.totals.tensors)).collect();
    assert_eq!(named, [("..3", 1), ("7", 1), ("a.2", 2), ("a.10", 1), ("b.0", 1), (NO_LAYER, 2)]);
}

#[test]
fn every_tensor_has_one_role() {
    let names = ["a.0.q.weight", "a.1.q.weight", "a.1.k.weight", "a.1x.k", "", ".", "0", "a..0"];
    for name in names {
        assert_eq!(role_of(name).matches('.').count(), name.matches('.').count());
    }
    let found = roles(&tensors(&["a.0.q.weight", "a.1.q.weight", "a.1.k.weight", "a.1x.k"]));
    let named: Vec<_> = found.iter().map(|g| (g.name.as_str(), g.totals.tensors, g.schemes.as_str())).collect();
    assert_eq!(named, [("a.*.q.weight", 2, "raw"), ("a.*.k.weight", 1, "raw"), ("a.1x.k", 1, "raw")]);
    assert_eq!(file([("a", &[4][..]), ("b", &[4])]).rates().all.totals.tensors, 2);
    assert_eq!(file([]).rates().all.totals, Totals::default());
}

#[test]
fn names_of_thousands_of_parts_are_no_deep_tree() {
    let names: Vec<String> = (1..2000).map(|parts| ["a"; 2000][..parts].join(".")).collect();
    let tensors = file(names.iter().map(|name| (name.as_str(), &[1][..]))).tensors;
    let natural = order::natural_order(&tensors);
    // A file is opened on a thread; this one has little.
    let tree = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        thread.spawn_scoped(scope, || Tree::new(&tensors, &natural)).unwrap().join().unwrap()
    });
    assert_eq!(tree.nodes.iter().filter(|n| n.tensor.is_some()).count(), 1999);
    assert!(tree.nodes.iter().all(|n| n.depth < 64));
    assert!(tree.nodes.iter().all(|n| n.tensor.is_none_or(|i| tensors[i].name.ends_with(&n.label))));
}

type Metadata = BTreeMap<String, String>;

fn metadata(plan: &str, quality: &str) -> Metadata {
    Metadata::from([(PLAN_KEY.to_owned(), plan.to_owned()), (QUALITY_KEY.to_owned(), quality.to_owned())])
}

const MEASURED: &str = r#"{"kl": 0.130254, "perplexity": 5.57072, "original_perplexity": 4.94055,
    "top1_agreement": 0.855713, "tokens": 12288, "text_sha256": "80297662a7964a65f0ed"}"#;

#[test]
fn lines_are_those_of_inspect() {
    let plan = r#"{"recipe": "measured roles", "target": "4 bits", "candidates": [{"recipe": "weights alone", "kl": 0.5}, 7]}"#;
    let found = metadata(plan, MEASURED);
    let quality = "KL 0.13 nats/token, perplexity 4.9405 -> 5.5707, same top token 85.57 %, of 12,288 tokens \
         (text 80297662a7964a65)";
    assert_eq!(lines(&found), [("plan", "measured roles, for 4 bits".to_owned()), ("measured", quality.to_owned())]);
    let calibrated = |text: &str| Metadata::from([(CALIBRATION_KEY.to_owned(), text.to_owned())]);
    let found_of = |text: &str| lines(&calibrated(text));
    assert_eq!(found_of(r#"{"tokens": 2048}"#), [("calibrated", "on 2,048 tokens".to_owned())]);
    let own = [("calibrated", "on 512 tokens that the model wrote".to_owned())];
    assert_eq!(found_of(r#"{"version": 1, "tokens": 512, "source": "self"}"#), own);
    let mixed = [("calibrated", "on 512 tokens of many kinds of text".to_owned())];
    assert_eq!(found_of(r#"{"version": 1, "tokens": 512, "source": "mixed"}"#), mixed);
    assert_eq!(found_of(r#"{"tokens": -1}"#), []);
    let plan = Statement::of(&found, PLAN_KEY).unwrap();
    assert_eq!((plan.candidates().len(), plan.weights_alone()), (1, Some(0.5)));
}

#[test]
fn what_is_in_no_known_form_is_not_there() {
    let deep = "[".repeat(100_000);
    for text in ["", "{}", "[]", "3", "null", "{\"recipe\": 3, \"target\": \"x\"}", "{\"kl\": NaN}", "\u{0}", &deep] {
        assert_eq!(lines(&metadata(text, text)), [], "{text:.30}");
    }
    for wrong in ["true", "1e999"] {
        let quality = metadata("", &MEASURED.replace("0.130254", wrong));
        assert_eq!(Statement::of(&quality, QUALITY_KEY), None);
    }
    // Other keys beside it may be anything.
    let odd =
        r#"{"recipe": "a", "target": "b", "bits": "x", "trellis": 3, "candidates": {"recipe": "c"}, "scheme": []}"#;
    let plan = Statement::of(&metadata(odd, ""), PLAN_KEY).unwrap();
    assert_eq!((plan_line(&plan).as_str(), plan.candidates()), ("a, for b", Vec::new()));
    assert_eq!((plan.words("scheme"), plan.number("bits"), plan.flag("trellis")), (None, None, None));
    let odd = MEASURED.replace("12288", "-1.5").replace("\"80297662a7964a65f0ed\"", "null");
    let found = Statement::of(&metadata("", &odd), QUALITY_KEY).unwrap();
    assert_eq!((found.tokens().as_str(), found.text().as_str(), found.whole("windows")), ("-1.5", "?", None));
}
