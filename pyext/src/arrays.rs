//! NumPy's arrays. NumPy is imported when the first of them comes or goes: much of the package needs none.

use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Has NumPy's interface looked up by a thread of its own, in which Python handles no signals: the crate `numpy` panics where its
/// look-up at first use ends with an exception, and Ctrl-C would be one.
fn look_up(py: Python<'_>) -> PyResult<()> {
    static DONE: PyOnceLock<()> = PyOnceLock::new();
    if DONE.get(py).is_none() {
        // Without NumPy, or with a broken one, the caller sees why.
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

/// An array of `elements`, which are not copied.
pub fn array<T: Element>(py: Python<'_>, elements: Vec<T>) -> PyResult<Bound<'_, PyArray1<T>>> {
    look_up(py)?;
    Ok(elements.into_pyarray(py))
}

/// A contiguous array that was given; its elements are there while the interpreter is held.
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
