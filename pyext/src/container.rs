//! An open container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyKeyError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use wcodec::names::natural;
use wcodec::{AheadOptions, Comparisons, Cut, DecodeOptions, Dtype, PlaneInfo, Source, TensorInfo, TensorInfos};
use wcodec_tui::draw::theme::Look;
use wcodec_tui::model::filter::Filter;
use wcodec_tui::model::order::{Column, Sort, sort};
use wcodec_tui::model::rates::{Group, roles};
use wcodec_tui::{json, plain};

use crate::arrays::array;
use crate::encode::Input;
use crate::errors::to_py;
use crate::options::{Decode, open_options};
use crate::progress::{detached, run, run_for};

/// A part of a tensor: its name, the part's name, the dimension that is cut, and the start and end of each range.
type TensorCut = (String, String, usize, Vec<(usize, usize)>);

/// An open container; `wcodec.Container` is the class for users.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Container(wcodec::Container);

impl Container {
    /// Wraps the crate's container.
    pub fn new(container: wcodec::Container) -> Self {
        Self(container)
    }

    /// The crate's container.
    pub fn inner(&self) -> &wcodec::Container {
        &self.0
    }

    /// Bytes of a tensor before it was encoded, about as many as decoding produces; 0 if there is no tensor of this
    /// name.
    fn bytes_of(&self, name: &str) -> u64 {
        self.0.info(name).map_or(0, |i| i.original_bytes)
    }
}

#[pymethods]
impl Container {
    /// Opens the file at `path`: reads header and index.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, trusted: bool) -> PyResult<Self> {
        detached(py, || wcodec::Container::open_with(&path, &open_options(trusted))).map(Self)
    }

    /// Opens a container in memory.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: Vec<u8>, trusted: bool) -> PyResult<Self> {
        detached(py, || wcodec::Container::from_bytes_with(data, &open_options(trusted))).map(Self)
    }

    /// Whether it was opened as trusted.
    fn trusted(&self) -> bool {
        self.0.trusted()
    }

    /// Tied tensor -> the stored one that holds its data.
    fn aliases(&self) -> BTreeMap<String, String> {
        self.0.aliases().clone()
    }

    /// The index's descriptions of the tensors.
    fn facts(&self) -> Facts {
        Facts(self.0.tensors().clone())
    }

    /// The index, in file order, of a tensor or of the one that it is tied to.
    fn place(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        self.0.reader().place(name).map_err(|e| to_py(py, &e))
    }

    /// The closest name to one that does not exist.
    fn near(&self, name: &str) -> Option<&str> {
        self.0.reader().near(name)
    }

    /// Metadata of the checkpoint and of the user.
    fn metadata(&self) -> BTreeMap<String, String> {
        self.0.metadata().clone()
    }

    /// The model's configuration and the names of its other files, as JSON.
    fn model(&self, py: Python<'_>) -> PyResult<Option<String>> {
        detached(py, || self.0.model()).map(|model| model.map(|m| m.to_string()))
    }

    /// Length of the file in bytes.
    fn file_len(&self) -> u64 {
        self.0.file_len()
    }

    /// The path of the file; `None` for one in memory.
    fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    /// Version of the format, major and minor.
    fn version(&self) -> (u16, u16) {
        self.0.version()
    }

    /// The program that wrote the file.
    fn writer(&self) -> &str {
        self.0.writer()
    }

    /// Quantized symbols, in the order of the matrix view.
    fn symbols<'py>(&self, py: Python<'py>, name: &str, options: Decode) -> PyResult<Bound<'py, PyArray1<i8>>> {
        let symbols = run_for(py, self.bytes_of(name), |cancel| self.0.symbols(name, &options.build(cancel)?))?;
        array(py, symbols)
    }

    /// Scales, in the order of the matrix view.
    fn scales<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<f32>>> {
        array(py, detached(py, || self.0.scales(name))?)
    }

    /// Factors of columns, matrix by matrix, if columns have some.
    fn columns<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyArray1<f32>>>> {
        detached(py, || self.0.columns(name))?.map(|factors| array(py, factors)).transpose()
    }

    /// The tensor's bytes in its own dtype, or in `dtype`, as 8-byte words, and the number of bytes that count.
    ///
    /// NumPy takes ownership of the words without a copy; bytes would have another alignment, which prevents that.
    #[pyo3(signature = (name, dtype, options))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        dtype: Option<&str>,
        options: Decode,
    ) -> PyResult<(Bound<'py, PyArray1<u64>>, usize)> {
        let (words, len) = run_for(py, self.bytes_of(name), |cancel| {
            let options = options.build(cancel)?;
            let bytes = match dtype {
                Some(dtype) => self.0.read_as(name, Dtype::from_name(dtype)?, &options)?,
                None => self.0.read(name, &options)?,
            };
            Ok(bytes.into_words())
        })?;
        Ok((array(py, words)?, len))
    }

    /// Rows of a tensor, in the form in which `read` returns all of them.
    #[pyo3(signature = (name, begin, end, dtype, options))]
    fn read_rows<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        begin: usize,
        end: usize,
        dtype: Option<&str>,
        options: Decode,
    ) -> PyResult<(Bound<'py, PyArray1<u64>>, usize)> {
        let (words, len) = run_for(py, self.bytes_of(name), |cancel| {
            let dtype = dtype.map(Dtype::from_name).transpose()?;
            Ok(self.0.read_rows(name, begin..end, dtype, &options.build(cancel)?)?.into_words())
        })?;
        Ok((array(py, words)?, len))
    }

    /// Makes threads read these tensors from the file whenever they are decoded; without names, read-ahead ends.
    fn read_ahead(
        &self,
        py: Python<'_>,
        names: Vec<String>,
        ring: usize,
        direct: bool,
        threads: Option<usize>,
    ) -> PyResult<()> {
        detached(py, || self.0.read_ahead(&names, &AheadOptions { ring, direct, threads }))
    }

    /// The bytes of the file that decoding a tensor, or some of its rows, reads.
    fn reads(&self, py: Python<'_>, name: &str, rows: Option<(usize, usize)>) -> PyResult<Reads> {
        detached(py, || self.0.reads(name, rows.map(|(begin, end)| begin..end))).map(Reads)
    }

    /// Announces the next reads, in this order, and drops all others.
    fn want(&self, py: Python<'_>, reads: Vec<PyRef<'_, Reads>>) {
        let reads: Vec<&wcodec::Reads> = reads.iter().map(|r| &r.0).collect();
        py.detach(|| self.0.want(reads));
    }

    /// Counters of read-ahead: the limit and the peak of its memory in bytes, whether it bypasses the page cache, the
    /// bytes that it covers, and the numbers of reads that were and were not on their way.
    fn ahead_facts(&self) -> Option<(usize, usize, bool, u64, u64, u64)> {
        self.0.ahead_facts().map(|f| (f.ring, f.most, f.direct, f.covers, f.ahead, f.late))
    }

    /// A container with only the tensors `names`.
    fn extract<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Bound<'py, PyBytes>> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        run(py, None, |_, link| {
            let options = DecodeOptions { cancel: link.cancel(), ..DecodeOptions::default() };
            wcodec::extract(&self.0, &names, &options)
        })
        .map(|bytes| PyBytes::new(py, &bytes))
    }

    /// An open container in memory with parts of tensors: name of the tensor, name of the part, dimension, ranges of
    /// it.
    fn narrow(&self, py: Python<'_>, cuts: Vec<TensorCut>, options: Decode) -> PyResult<Self> {
        let ranges = |ranges: &[(usize, usize)]| ranges.iter().map(|&(start, stop)| start..stop).collect();
        let parts = cuts.iter();
        let cuts = parts.map(|(tensor, name, axis, kept)| Cut { tensor, name, axis: *axis, ranges: ranges(kept) });
        let cuts: Vec<Cut<'_>> = cuts.collect();
        run(py, None, |_, link| wcodec::narrow(&self.0, &cuts, &options.build(&link.cancel())?)).map(Self)
    }

    /// The file with the model's other tensors, which may be missing, if the container holds only a part of the model.
    fn rest(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        detached(py, || match self.0.open_rest() {
            Ok(None) => Ok(None),
            _ => self.0.rest(),
        })
    }

    /// Decodes every tensor into a `.safetensors` file, with those of the model's rest. `partial`: whether the rest may
    /// be missing.
    #[pyo3(signature = (dst, overwrite, partial, options, progress))]
    fn decode(
        &self,
        py: Python<'_>,
        dst: PathBuf,
        overwrite: bool,
        partial: bool,
        options: Decode,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        run(py, progress.as_ref(), |progress, link| {
            let missing = partial && self.0.rest()?.is_some_and(|path| !path.is_file());
            let rest = if missing { None } else { self.0.open_rest()? };
            let rest = rest.as_ref().map(|r| r as &dyn Source);
            wcodec::decode(&self.0, rest, &dst, &options.build(&link.cancel())?, overwrite, progress)
        })
    }

    /// Checks every tensor, also against a checkpoint if one is given; returns the report as JSON.
    #[pyo3(signature = (against, options, progress))]
    fn verify(
        &self,
        py: Python<'_>,
        against: Option<Input>,
        options: Decode,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        run(py, progress.as_ref(), |progress, link| {
            let options = options.build(&link.cancel())?;
            match against {
                None => wcodec::verify(&self.0, None, &options, progress),
                Some(input) => input.with(link, |source| wcodec::verify(&self.0, Some(source), &options, progress)),
            }
        })
        .map(|r| serde_json::json!({"ok": r.ok(), "tensors": r.tensors, "damage": r.file}).to_string())
    }
}

/// The parts of a file that decoding reads.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Reads(wcodec::Reads);

#[pymethods]
impl Reads {
    /// Total bytes.
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// An index's descriptions of its tensors, addressed by index in file order. It outlives the container.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Facts(TensorInfos);

impl Facts {
    fn at(&self, py: Python<'_>, place: usize) -> PyResult<TensorInfo> {
        self.0.get(place).map_err(|e| to_py(py, &e))?.ok_or_else(|| PyIndexError::new_err(place))
    }

    /// The tensors at these indices; invalid ones are skipped.
    fn chosen(&self, places: &[usize]) -> wcodec::Result<Vec<TensorInfo>> {
        places.iter().filter_map(|&i| self.0.get(i).transpose()).collect()
    }
}

/// The indices in `names` of those that match a filter in the syntax of `wcodec-tui`.
#[pyfunction]
pub fn matching(py: Python<'_>, filter: &str, names: Vec<String>) -> Vec<usize> {
    py.detach(|| {
        let filter = Filter::new(filter);
        (0..names.len()).filter(|&i| filter.matches(&names[i])).collect()
    })
}

#[pymethods]
impl Facts {
    /// Names of the stored tensors.
    fn names(&self) -> Vec<&str> {
        (0..self.0.len()).filter_map(|place| self.0.name(place)).collect()
    }

    /// The number of tensors, their elements, bytes before encoding, and stored bytes without those that belong to no
    /// tensor.
    fn totals(&self, py: Python<'_>) -> PyResult<(usize, u64, u64, u64)> {
        let mut sums = [0u64; 3];
        detached(py, || {
            for place in 0..self.0.len() {
                let sizes = self.0.sizes(place)?;
                sums.iter_mut().zip(sizes).for_each(|(sum, size)| *sum = sum.saturating_add(size));
            }
            Ok(())
        })?;
        let [elements, original, stored] = sums;
        Ok((self.0.len(), elements, original, stored))
    }

    /// Role, offset, length and hash of each segment of a tensor.
    fn segments(&self, py: Python<'_>, place: usize) -> PyResult<Vec<(&'static str, u64, u64, String)>> {
        let tensor = self.at(py, place)?;
        Ok(tensor.segments.iter().map(|s| (s.role, s.offset, s.length, s.hash.to_string())).collect())
    }

    /// Bits, coder, layout, shift, filter, tile, frame and chunks of each plane of a tensor.
    #[allow(clippy::type_complexity, reason = "the tuple that Python takes apart")]
    fn planes<'py>(
        &self,
        py: Python<'py>,
        place: usize,
    ) -> PyResult<
        Vec<(
            Option<Vec<(u32, u32)>>,
            String,
            Option<String>,
            Option<u32>,
            String,
            Option<usize>,
            Option<usize>,
            usize,
        )>,
    > {
        let tensor = self.at(py, place)?;
        let plane = |p: &PlaneInfo| {
            let bits = p.bits.as_ref().map(|runs| runs.iter().map(|&[lowest, width]| (lowest, width)).collect());
            let layout = p.layout.as_ref().map(ToString::to_string);
            (bits, p.coder.to_string(), layout, p.shift, p.filter.to_string(), p.tile, p.frame, p.chunks)
        };
        Ok(tensor.planes.iter().map(plane).collect())
    }

    /// One tensor: the arguments of `wcodec.TensorInfo` without planes and segments.
    fn record<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyDict>> {
        let t = self.at(py, place)?;
        let record = PyDict::new(py);
        record.set_item(intern!(py, "name"), &t.name)?;
        record.set_item(intern!(py, "dtype"), t.dtype.name())?;
        record.set_item(intern!(py, "shape"), PyTuple::new(py, &t.shape)?)?;
        record.set_item(intern!(py, "scheme"), t.scheme.as_str())?;
        record.set_item(intern!(py, "scale"), t.scales.as_deref())?;
        record.set_item(intern!(py, "columns"), t.columns)?;
        record.set_item(intern!(py, "makes_symbols"), t.makes_symbols)?;
        record.set_item(intern!(py, "count"), t.count)?;
        record.set_item(intern!(py, "rows"), t.rows)?;
        record.set_item(intern!(py, "cols"), t.cols)?;
        record.set_item(intern!(py, "row_axis"), t.row_axis)?;
        record.set_item(intern!(py, "cut"), t.cut)?;
        record.set_item(intern!(py, "elements"), t.elements)?;
        record.set_item(intern!(py, "original_bytes"), t.original_bytes)?;
        record.set_item(intern!(py, "stored_bytes"), t.stored_bytes)?;
        record.set_item(intern!(py, "entropy"), t.entropy)?;
        record.set_item(intern!(py, "error"), t.error)?;
        Ok(record)
    }

    /// The given indices, sorted by a column as in `wcodec-tui`, the most interesting ones first. The sort is stable.
    fn sorted(&self, py: Python<'_>, mut places: Vec<usize>, by: &str) -> PyResult<Vec<usize>> {
        let infos = &self.0;
        places.retain(|&i| i < infos.len());
        let column =
            Column::ALL.into_iter().find(|c| c.name() == by).ok_or_else(|| PyKeyError::new_err(by.to_owned()))?;
        if column == Column::Name {
            // Nearly all calls sort by name, which needs no descriptions.
            let name = |i: usize| infos.name(i).unwrap_or("");
            py.detach(|| places.sort_by(|&a, &b| natural(name(a), name(b))));
            return Ok(places);
        }
        detached(py, || {
            let chosen = self.chosen(&places)?;
            let mut rows: Vec<usize> = (0..chosen.len()).collect();
            sort(&chosen, &mut rows, Sort { column, descending: column.descends() }, |i| chosen[i].entropy);
            Ok(rows.into_iter().map(|i| places[i]).collect())
        })
    }

    /// Sums by role over the tensors at these indices, the most stored bytes first: the role, its schemes, tensors,
    /// elements, bytes before encoding, stored bytes, and the stated error.
    #[allow(clippy::type_complexity, reason = "the tuple that Python takes apart")]
    fn roles(
        &self,
        py: Python<'_>,
        places: Vec<usize>,
    ) -> PyResult<Vec<(String, String, usize, u64, u64, u64, Option<f64>)>> {
        detached(py, || {
            let groups = roles(&self.chosen(&places)?);
            let row = |g: Group| {
                let t = g.totals;
                (g.name, g.schemes, t.tensors, t.elements, t.original_bytes, t.stored_bytes, g.error)
            };
            Ok(groups.into_iter().map(row).collect())
        })
    }

    /// Dimensions, elements, bytes before encoding, stored bytes and stated error of the tensors at these indices.
    #[allow(clippy::type_complexity, reason = "the tuple that Python takes apart")]
    fn figures(&self, py: Python<'_>, places: Vec<usize>) -> PyResult<Vec<(usize, u64, u64, u64, Option<f64>)>> {
        detached(py, || {
            let row = |t: &TensorInfo| (t.shape.len(), t.elements, t.original_bytes, t.stored_bytes, t.error);
            Ok(self.chosen(&places)?.iter().map(row).collect())
        })
    }

    /// A table of the tensors at these indices, one per line below the header.
    fn table(&self, py: Python<'_>, places: Vec<usize>) -> PyResult<String> {
        detached(py, || {
            let chosen = self.chosen(&places)?;
            Ok(plain::listing(&chosen.iter().collect::<Vec<_>>(), Look::default(), false))
        })
    }

    /// The entries of a JSON list of the tensors at these indices, one per line, each with a leading comma, in parts.
    fn json<'py>(&self, py: Python<'py>, places: Vec<usize>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        parts(py, || json::tensors(&self.0, &places))
    }
}

/// A comparison of two containers by their decoded content.
#[pyclass(frozen, module = "wcodec._native")]
pub struct Comparison {
    found: Comparisons,
    /// Indices of each tensor in both files.
    places: Vec<(Option<usize>, Option<usize>)>,
}

#[pymethods]
impl Comparison {
    /// Whether both have the same decoded content.
    fn same(&self) -> bool {
        self.found.same()
    }

    /// Name, status, detail, and the indices in both files, of each tensor.
    #[allow(clippy::type_complexity, reason = "the tuple that Python takes apart")]
    fn rows(&self) -> Vec<(&str, &str, &str, Option<usize>, Option<usize>)> {
        let rows = self.found.tensors.iter().zip(&self.places);
        rows.map(|(t, &(a, b))| (t.name.as_str(), t.status.name(), t.detail.as_str(), a, b)).collect()
    }

    /// The table of the tensors and their differences.
    fn table(&self, py: Python<'_>) -> String {
        py.detach(|| plain::comparison(&self.found, Look::default()))
    }

    /// The entries of a JSON list of the tensors, in the same form.
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        parts(py, || json::compared(&self.found))
    }
}

/// Parts of an ASCII document: as bytes they can be written without conversion, and they may be long.
fn parts<'py>(
    py: Python<'py>,
    write: impl FnOnce() -> std::io::Result<Vec<String>> + Send,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    // Numbers and text can always be written as JSON.
    let parts = py.detach(write).map_err(|e| PyRuntimeError::new_err(e.to_string()))?;
    Ok(parts.iter().map(|part| PyBytes::new(py, part.as_bytes())).collect())
}

/// Compares two containers by their decoded content.
#[pyfunction]
pub fn compare(py: Python<'_>, a: &Bound<'_, Container>, b: &Bound<'_, Container>) -> PyResult<Comparison> {
    let (a, b) = (&a.get().0, &b.get().0);
    detached(py, || {
        let found = wcodec::compare(a, b)?;
        let place = |c: &wcodec::Container, name: &str| c.reader().find(name);
        let places = found.tensors.iter().map(|t| (place(a, &t.name), place(b, &t.name))).collect();
        Ok(Comparison { found, places })
    })
}
