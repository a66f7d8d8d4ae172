//! No operation touches rayon's global pool: it has no threads in a forked process, and would block there for ever.
//!
//! One test in a binary of its own, since that pool belongs to the process.

mod common;

use std::path::Path;

use common::{checked, samples};
use wcodec::{
    Cancel, Checkpoint, Container, Dtype, EncodeOptions, Pool, Source, compare, decode, encode, extract, layer, legacy,
    verify,
};

#[test]
fn nothing_uses_the_pool_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut go, path) = (|_: &wcodec::ProgressEvent<'_>| Ok(()), folder.path().join("m.wcodec"));
    // Larger than one read, so that files are read in pieces.
    let shape = [1200usize, 2048];
    let mut source = samples::source();
    let large = samples::as_bytes(&samples::weights(shape.iter().product(), 7));
    source.push("large".to_owned(), Dtype::F32, shape.to_vec(), large.into()).unwrap();
    let codes = samples::symbols(4096 * 2048, 2.0, 8);
    source.push("bytes".to_owned(), Dtype::I8, vec![4096, 2048], samples::as_bytes(&codes).into()).unwrap();

    encode(&source, &path, &EncodeOptions::default(), &mut go).unwrap();
    let container = Container::open(&path).unwrap();
    let plain = folder.path().join("m.safetensors");
    decode(&container, None, &plain, &checked(true), false, &mut go).unwrap();
    let checkpoint = Checkpoint::open(Path::new(&plain)).unwrap();
    encode(&checkpoint, &folder.path().join("again.wcodec"), &EncodeOptions::default(), &mut go).unwrap();
    (0..checkpoint.tensors().len()).for_each(|i| drop(checkpoint.read(i).unwrap()));
    assert!(verify(&container, Some(&source), &checked(true), &mut go).unwrap().ok());
    assert!(compare(&container, &container).unwrap().same());
    for name in container.names() {
        container.read(name, &checked(false)).unwrap();
        container.symbols(name, &checked(true)).ok();
        container.scales(name).ok();
        container.chunk(name, 0).unwrap();
        container.read_chunk(name, 0, &checked(true)).unwrap();
        container.read_rows(name, 0..0, None, &checked(true)).ok();
        container.read_rows(name, 0..1, None, &checked(true)).ok();
        extract(&container, &[name], &checked(true)).unwrap();
    }
    layer::encode(&codes, 4096, 2048, &EncodeOptions::default()).unwrap();
    legacy::decode(&legacy::encode(&codes, 4096, 2048, 1).unwrap()).unwrap();
    checkpoint.read_with(0, &Pool::new(Some(2)).unwrap(), &Cancel::new()).unwrap();

    // The pool is made at its first use, and can be made only once.
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("something has used rayon's own pool");
}
