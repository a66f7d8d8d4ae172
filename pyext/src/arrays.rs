//! NumPy arrays. NumPy is imported when the first of them is passed in or out: much of the package needs none.

use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Looks up NumPy's interface on a thread of its own, on which Python handles no signals: the crate `numpy` panics if
/// its lookup on first use ends with an exception, and Ctrl-C would be one.
fn look_up(py: Python<'_>) -> PyResult<()> {
    static DONE: PyOnceLock<()> = PyOnceLock::new();
    if DONE.get(py).is_none() {
        // If NumPy is missing or broken, the caller sees why.
        py.import("numpy")?;
        let looked_up = py.detach(|| {
            let thread =
                std::thread::spawn(|| Python::attach(|py| drop(PyArray1::<u8>::zeros(py, 0, false).readonly())));
            thread.join()
        });
        if let Err(panic) = looked_up {
            std::panic::resume_unwind(panic);
        }
        let _ = DONE.set(py, ());
    }
    Ok(())
}

/// An array of `elements`, without a copy.
pub fn array<T: Element>(py: Python<'_>, elements: Vec<T>) -> PyResult<Bound<'_, PyArray1<T>>> {
    look_up(py)?;
    Ok(elements.into_pyarray(py))
}

/// A contiguous array passed by the caller; its elements are accessible while the interpreter is held.
pub struct Array<'py, T: Element>(PyReadonlyArray1<'py, T>);

impl<T: Element> Array<'_, T> {
    /// The elements.
    pub fn elements(&self) -> PyResult<&[T]> {
        Ok(self.0.as_slice()?)
    }
}

impl<'a, 'py, T: Element + 'a> FromPyObject<'a, 'py> for Array<'py, T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        look_up(object.py())?;
        object.extract().map(Self)
    }
}
