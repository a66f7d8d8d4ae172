//! Changes several entries at once so that they fit each other: another shape, view, dtype or granularity, with the
//! matching number of scales.

use serde_json::{Value, json};

use super::choices::Choices;
use super::draft::Draft;

/// Changes the form of a tensor.
pub fn change(draft: &mut Draft, c: &mut Choices<'_>) {
    let Some(tensors) = draft.index["tensors"].as_array() else { return };
    let at = c.below(tensors.len());
    let Some(mut tensor) = tensors.get(at).cloned().filter(Value::is_object) else { return };
    match c.below(7) {
        0 => resize(draft, &mut tensor, c),
        1 => view(&mut tensor, c),
        2 => tensor["dtype"] = json!(c.one(&["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "I8", "U8", "I16", "I32"])),
        3 => granularity(draft, &mut tensor, c),
        4 => fields(&mut tensor, c),
        5 => plane(&mut tensor, c),
        _ => turn(&mut tensor),
    }
    draft.index["tensors"][at] = tensor;
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().into_iter().flatten().filter_map(|n| usize::try_from(n.as_u64()?).ok()).collect()
}

/// A few rows or columns more or less, which may or may not fit the padding.
fn resize(draft: &mut Draft, tensor: &mut Value, c: &mut Choices<'_>) {
    let matrix = numbers(&tensor["matrix"]);
    let &[count, rows, cols, axis] = &matrix[..] else { return };
    if matrix.iter().any(|&n| n > 1 << 20) {
        return;
    }
    let other = |n: usize, unit: usize, c: &mut Choices<'_>| match c.below(4) {
        0 => n,
        1 => n.next_multiple_of(unit),
        2 => n.saturating_sub(c.below(4)),
        _ => n + c.below(4),
    };
    let (rows, cols) = (other(rows, 16, c), other(cols, 64, c));
    tensor["shape"] = match (numbers(&tensor["shape"]).len(), axis) {
        (1, _) => json!([rows.saturating_mul(cols)]),
        (2, 1) => json!([cols, rows]),
        (2, _) => json!([rows, cols]),
        _ => json!([count, rows, cols]),
    };
    tensor["matrix"] = json!([count, rows, cols, axis]);
    fit_scales(draft, tensor);
}

/// Another view of equally many elements.
fn view(tensor: &mut Value, c: &mut Choices<'_>) {
    let mut parts = numbers(&tensor["shape"]);
    let Some(product) = parts.iter().try_fold(1usize, |n, &p| n.checked_mul(p)).filter(|&n| n > 0) else { return };
    let divisors: Vec<usize> = (1..=64).filter(|d| product.is_multiple_of(*d)).collect();
    let (a, b) = (*c.one(&divisors), *c.one(&divisors));
    // All three divide it.
    let third = product.is_multiple_of(a * b).then(|| product / a / b);
    match c.below(4) {
        0 => parts.insert(c.below(parts.len() + 1), 1),
        1 => parts = vec![product],
        2 => parts = vec![a, product / a],
        _ => match third {
            Some(third) => parts = vec![a, b, third],
            None => parts.reverse(),
        },
    }
    tensor["shape"] = json!(parts);
    if let Some(third) = third.filter(|_| c.once_in(2)) {
        tensor["matrix"] = json!([a, b, third, 0]);
    }
}

fn granularity(draft: &mut Draft, tensor: &mut Value, c: &mut Choices<'_>) {
    let Some(scales) = tensor.get_mut("scales").and_then(Value::as_object_mut) else { return };
    scales.remove("block");
    let per = *c.one(&["row", "tensor", "block"]);
    scales.insert("per".to_owned(), per.into());
    if per == "block" {
        scales.insert("block".to_owned(), json!(c.one(&[16, 32, 48, 64, 128, 256, 4096])));
    }
    fit_scales(draft, tensor);
}

/// Keeps as many of the existing scales as the tensor needs.
fn fit_scales(draft: &mut Draft, tensor: &mut Value) {
    let &[count, rows, cols, _] = &numbers(&tensor["matrix"])[..] else { return };
    let scales = &tensor["scales"];
    let per_row = match (scales["per"].as_str(), scales["block"].as_u64()) {
        (Some("tensor"), _) => 0,
        (Some("block"), Some(n)) => cols.div_ceil((n as usize).max(1)),
        _ => 1,
    };
    let size: usize = if scales["dtype"] == "BF16" { 2 } else { 4 };
    let all = [count, rows, per_row].iter().try_fold(size, |n, &m: &usize| n.checked_mul(m));
    let wanted = if per_row == 0 { Some(size) } else { all };
    // Factors of columns, which come first.
    let factors =
        if tensor["scheme"] == "columns" { count.checked_mul(cols).and_then(|n| n.checked_mul(size)) } else { Some(0) };
    let wanted = wanted.and_then(|n| n.checked_add(factors?));
    let Some(wanted) = wanted.filter(|&n| n <= 1 << 16) else { return };
    let Some(old) = draft.bytes(&scales["data"]).filter(|old| !old.is_empty()) else { return };
    let new: Vec<u8> = old.iter().copied().cycle().take(wanted).collect();
    tensor["scales"]["data"] = draft.add(new);
}

/// Changes the bits of an element that planes hold.
fn fields(tensor: &mut Value, c: &mut Choices<'_>) {
    let Some(planes) = tensor["planes"].as_array_mut().filter(|p| !p.is_empty()) else { return };
    let (i, j) = (c.below(planes.len()), c.below(planes.len()));
    if !planes[i].is_object() || !planes[j].is_object() {
        return;
    }
    match c.below(6) {
        0 => {
            let (a, b) = (planes[i]["fields"].clone(), planes[j]["fields"].clone());
            (planes[i]["fields"], planes[j]["fields"]) = (b, a);
        }
        1 => planes[i]["fields"] = json!([[c.below(64), 8]]),
        2 => {
            let width = c.below(9);
            planes[i]["fields"] = json!([[c.below(32), width], [c.below(32), 8 - width]]);
        }
        3 => planes[i]["fields"] = json!((0..8).map(|_| [c.below(16), 1]).collect::<Vec<_>>()),
        4 => planes[i]["fields"] = json!([[c.below(8), 8 + 8 * c.below(4)]]),
        _ => {
            if let Some(runs) = planes[i]["fields"].as_array_mut() {
                runs.reverse();
            }
        }
    }
}

/// Changes the coding of a plane, with everything that depends on it.
fn plane(tensor: &mut Value, c: &mut Choices<'_>) {
    let Some(planes) = tensor["planes"].as_array_mut().filter(|p| !p.is_empty()) else { return };
    let i = c.below(planes.len());
    let Some(plane) = planes[i].as_object_mut() else { return };
    match c.below(5) {
        0 => drop(plane.insert("filter".to_owned(), json!(c.one(&["left", "up", "none", "trellis"])))),
        1 => drop(plane.remove("filter")),
        2 => {
            plane.insert("layout".to_owned(), json!(c.one(&["byte", "pair", "quad", "split"])));
            plane.insert("shift".to_owned(), json!(c.one(&[0, 1, 2, 3, 4, 8, 16])));
        }
        3 => {
            plane.insert("coder".to_owned(), json!("raw"));
            ["offsets", "side", "chunks", "max_chunk", "table"].iter().for_each(|key| drop(plane.remove(*key)));
        }
        _ => drop(plane.insert("tile".to_owned(), json!(c.one(&[64, 128, 192, 1024])))),
    }
}

/// Toggles whether the view is the transpose.
fn turn(tensor: &mut Value) {
    let &[count, rows, cols, axis] = &numbers(&tensor["matrix"])[..] else { return };
    tensor["matrix"] = json!([count, rows, cols, 1 - axis.min(1)]);
    tensor["shape"] = if axis == 0 { json!([cols, rows]) } else { json!([rows, cols]) };
}
