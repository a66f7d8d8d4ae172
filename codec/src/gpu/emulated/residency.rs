//! Tensors of every residency: what a decoder plans of them, run by the emulator from slots that are filled as a device's are.

use super::product::Inputs;
use super::*;
use crate::error::{Error, Result};
use crate::gpu::disk::{self, Disk, tests::filled};
use crate::gpu::groups::{FileLookup, Group, Sources, Wanted, split};
use crate::gpu::plan::{LookupLaunch, ProductTiles, can_fuse, can_look_up};
use crate::gpu::residency::{Home, Residency};
use crate::gpu::tensors::Tensors;
use crate::gpu::work_item::{DecodeItem, ProductItem, ProductPart, ResultOrder, RowIds};
use crate::{ErrorKind, TensorInfo};

const ALL: [Residency; 3] = [Residency::Device, Residency::Host, Residency::Disk];

/// A decoder without a device: its memory, and that of its host, are the emulator's.
struct Machine {
    tensors: Tensors,
    homes: Vec<Home>,
    /// Packed tensors on the device, and in the host's memory.
    packed_tensors: Buffer,
    host: Buffer,
    disk: Disk,
    tables: Vec<u32>,
    statuses: Vec<u32>,
    slot: usize,
    pinned: usize,
}

impl Machine {
    /// With slots that are as small as tensors allow, or somewhat larger.
    fn new(container: &Container, rng: &mut StdRng, residency: &dyn Fn(&str) -> Residency, verify: bool) -> Self {
        let read = DecodeOptions { verify, ..oracle() };
        let (mut plans, mut homes, mut at) = (Vec::new(), Vec::new(), [0, 0]);
        let (mut packed_tensors, mut host) = (Vec::new(), Vec::new());
        let mut slot = 0;
        for info in container.infos().unwrap() {
            let parts = container.bytes_of(&info.name, &read);
            let Ok(parts) = parts else {
                // Only the structure of a damaged tensor is read now.
                assert_eq!(residency(&info.name), Residency::Disk);
                let (tensor, tables) = container.structure_of(&info.name, &read).unwrap();
                plans.push(TensorPlan::of(&tensor, tables.into_iter()).unwrap());
                homes.push(Home::Disk);
                slot = slot.max(PackedRows::bound_of_strip(&tensor));
                continue;
            };
            let plan = TensorPlan::new(&parts).unwrap();
            slot = slot.max(PackedRows::bound_of_strip(&plan.tensor));
            let mut packed = vec![0; plan.packed.len];
            plan.packed.fill(&parts, 0, &mut packed);
            let (to, at, home): (&mut Vec<u8>, _, fn(usize) -> Home) = match residency(&info.name) {
                Residency::Device => (&mut packed_tensors, &mut at[0], Home::Device),
                Residency::Host => (&mut host, &mut at[1], Home::Host),
                Residency::Disk => {
                    plans.push(plan);
                    homes.push(Home::Disk);
                    continue;
                }
            };
            homes.push(home(*at));
            *at += packed.len();
            to.extend(packed);
            plans.push(plan);
        }
        slot *= [1, 1, 3][rng.random_range(0..3)];
        let pinned = slot.next_multiple_of(disk::PAGE) + disk::margin(plans.iter().map(|plan| plan.planes.len()));
        let (mut tensors, needs) = Tensors::new(container, plans);
        let tables = needs.tables;
        let statuses = vec![abi::STATUS_GOOD; needs.planes];
        let address = |words: &[u32]| words.as_ptr().expose_provenance() as u64;
        tensors.place(address(&tables), address(&statuses));
        let disk = Disk::new(container, Some(2), rng.random(), verify).unwrap();
        let (packed_tensors, host) = (Buffer::from(&packed_tensors[..]), Buffer::from(&host[..]));
        Self { tensors, homes, packed_tensors, host, disk, tables, statuses, slot, pinned }
    }

    fn sources(&self) -> Sources<'_> {
        let (homes, packed_tensors) = (&self.homes, &self.host[..]);
        Sources { homes, packed_tensors, disk: Some(&self.disk), slot: self.slot, pinned: self.pinned }
    }

    /// The parts of a packed tensor that kernels read where it is: on the device, or in the host's memory.
    fn addresses(&self, i: usize) -> Vec<PlaneAddresses> {
        let packed = &self.tensors.plans[i].packed;
        match self.homes[i] {
            Home::Device(at) => packed.at(self.packed_tensors.address() + at as u64),
            Home::Host(at) => packed.at(self.host.address() + at as u64),
            Home::Disk => packed.at(0),
        }
    }

    /// A slot as it is when the copies for a group are done.
    fn filled(&self, group: &mut Group, poison: u8) -> Result<Buffer> {
        let reads = std::mem::take(&mut group.reads);
        let mut slot = match reads.fetches.is_empty() {
            true => vec![poison; group.bytes],
            false => filled(&self.disk, reads, group.bytes, poison)?,
        };
        for (range, place) in &group.copies {
            slot[*place..place + range.len()].copy_from_slice(&self.host[range.clone()]);
        }
        Ok(Buffer::from(&slot[..]))
    }

    /// Memory that kernels reach besides slots and outputs; of the statuses nobody else has a reference meanwhile.
    fn memory<'a>(
        packed_tensors: &'a Buffer,
        host: &'a Buffer,
        tables: &'a [u32],
        statuses: &'a mut [u32],
    ) -> Vec<Memory<'a>> {
        vec![
            Memory::read::<u8>(packed_tensors),
            Memory::read::<u8>(host),
            Memory::read::<u32>(tables),
            Memory::write::<u32>(statuses),
        ]
    }

    /// Runs `launch` for what is on the device, and for each group of what is not, as a batch does; kernels reach `written` besides.
    fn each(
        &mut self,
        rng: &mut StdRng,
        wanted: Vec<Wanted>,
        written: &mut [&mut Buffer],
        mut launch: impl FnMut(&[WorkItem<'_>], &[Memory<'_>]),
    ) -> Result<usize> {
        let (resident, others) = split(&self.tensors, &self.homes, wanted, |i| self.addresses(i))?;
        let mut groups = self.sources().groups(&self.tensors, &others)?;
        let mut memory = Self::memory(&self.packed_tensors, &self.host, &self.tables, &mut self.statuses);
        memory.extend(written.iter_mut().map(|buffer| Memory::write::<u8>(buffer)));
        launch(&resident, &memory);
        for group in &mut groups {
            assert!(group.bytes <= self.slot && group.reads.bytes <= self.pinned);
            let slot = self.filled(group, rng.random())?;
            let items = group.items(&self.tensors, slot.address())?;
            let mut memory = Self::memory(&self.packed_tensors, &self.host, &self.tables, &mut self.statuses);
            memory.extend(written.iter_mut().map(|buffer| Memory::write::<u8>(buffer)));
            memory.push(Memory::read::<u8>(&slot));
            launch(&items, &memory);
        }
        Ok(groups.len())
    }

    /// Decodes items to `out`; how many slots that takes.
    fn decode(&mut self, rng: &mut StdRng, items: Vec<DecodeItem>, out: &mut Buffer) -> Result<usize> {
        let wanted = items.into_iter().map(|item| (item, None)).collect();
        let seed = rng.random();
        self.each(rng, wanted, &mut [out], |items, memory| launch(items, memory, seed))
    }

    /// Multiplies vectors with all rows of matrices, or some, and adds `bias`; results are from `GUARD` on in `out`.
    fn multiply(
        &mut self,
        rng: &mut StdRng,
        items: &[ProductItem],
        order: ResultOrder,
        inputs: &Inputs,
        bias: &Buffer,
        out: &mut Buffer,
    ) -> Result<usize> {
        // Another launch may have written them: as memory that is written to, they are not to be read by loads of what never changes.
        let (mut bias, mut vectors) = (bias.clone(), Buffer::from(&inputs.memory[..]));
        let at = |f: &ProductItem| if f.bias == 0 { 0 } else { bias.address() };
        let items: Vec<ProductItem> = items.iter().map(|f| ProductItem { bias: at(f), ..f.clone() }).collect();
        let wanted = self.tensors.products(&items, order, |dtype| dtype != Dtype::F32)?;
        let wanted = wanted.into_iter().map(|(item, product)| (item, Some(product))).collect();
        let (seed, y, x) = (rng.random(), out.address() + GUARD as u64, vectors.address() + inputs.off as u64);
        self.each(rng, wanted, &mut [out, &mut bias, &mut vectors], |items, memory| {
            let mut items: Vec<ProductTiles<'_>> = items.iter().map(product).collect();
            items.sort_by_key(ProductTiles::key);
            for l in product::launches(&items, inputs.count, LIMITS).0 {
                let mut params = l.params.clone();
                (params.vectors, params.x, params.x_stride) = (inputs.count as u32, x, inputs.stride as u64);
                let aligned = x.is_multiple_of(16) && (inputs.count == 1 || inputs.stride.is_multiple_of(8));
                (params.y, params.vector) = (y, aligned.into());
                let launch = Launch::new(l.module, &l.kernel).grid(l.grid).threads(l.threads).shared(l.shared);
                let launch = launch.seed(seed).overlaps(true);
                launch.run(params.as_bytes(), memory).unwrap_or_else(|e| panic!("{}: {e}", l.kernel));
            }
        })
    }

    /// Looks rows up, as a decoder does for each residency; how many runs of numbers there were.
    fn look_up(&mut self, rng: &mut StdRng, name: &str, dtype: Dtype, ids: &Ids, out: &mut Buffer) -> Result<usize> {
        let number = self.tensors.find(name)?;
        let here = self.tensors.lookup_items(name, dtype, |i| self.addresses(i))?;
        let to = out.address() + GUARD as u64;
        let seed = rng.random();
        if self.homes[number] != Home::Disk {
            let mut memory = Self::memory(&self.packed_tensors, &self.host, &self.tables, &mut self.statuses);
            memory.push(Memory::write::<u8>(out));
            memory.push(Memory::read::<u8>(&ids.memory));
            look_up(&here, ids.place(0..ids.all.len()), to, &memory, seed);
            return Ok(1);
        }
        let plan = &self.tensors.plans[number];
        let row = plan.row_bytes(plan.output(dtype)?);
        let item = DecodeItem { name: name.to_owned(), out: 0, dtype, rows: None };
        // The host has the numbers that it has read of the device's memory.
        let numbers = ids.place(0..ids.all.len()).indices(&ids.memory);
        assert_eq!(numbers, ids.all);
        let mut lookup = FileLookup::new(&self.sources(), &self.tensors, &item, &numbers)?;
        let mut runs = 0;
        for (group, of) in lookup.groups.iter_mut().zip(&lookup.runs) {
            let slot = self.filled(group, rng.random())?;
            for (piece, run) in of {
                let places = |_| group.pieces[*piece].places(slot.address());
                let items = self.tensors.lookup_items(name, dtype, places)?;
                let mut memory = Self::memory(&self.packed_tensors, &self.host, &self.tables, &mut self.statuses);
                memory.push(Memory::write::<u8>(out));
                memory.push(Memory::read::<u8>(&ids.memory));
                memory.push(Memory::read::<u8>(&slot));
                look_up(&items, ids.place(run.clone()), to + (run.start * row) as u64, &memory, seed);
                runs += 1;
            }
        }
        Ok(runs)
    }

    /// The damage that was found since this was asked last.
    fn check(&mut self) -> Option<Error> {
        let damage = self.tensors.damage(&self.statuses);
        self.statuses.fill(abi::STATUS_GOOD);
        damage
    }
}

/// Numbers of rows in memory.
struct Ids {
    all: Vec<i64>,
    wide: bool,
    memory: Buffer,
}

impl Ids {
    fn new(mut all: Vec<i64>, wide: bool) -> Self {
        if !wide {
            all.iter_mut().for_each(|id| *id = i64::from(*id as i32));
        }
        let bytes: Vec<u8> = match wide {
            true => all.iter().flat_map(|id| id.to_le_bytes()).collect(),
            false => all.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect(),
        };
        Self { all, wide, memory: Buffer::from(&bytes[..]) }
    }

    fn place(&self, run: Range<usize>) -> RowIds {
        let none = RowIds { ptr: self.memory.address(), count: run.len(), wide: self.wide };
        RowIds { ptr: none.ptr + (run.start * none.bytes()) as u64, ..none }
    }
}

fn product<'a>(item: &WorkItem<'a>) -> ProductTiles<'a> {
    let Method::Tiles(tiles) = item.method else { panic!("{} is not in tiles", item.plan.name()) };
    ProductTiles { tiles: item.in_tiles(tiles), product: item.product.expect("it is multiplied with") }
}

/// Decodes, in as few launches as a device.
fn launch(items: &[WorkItem<'_>], memory: &[Memory<'_>], seed: u64) {
    let (mut in_tiles, mut element_bits, mut symbols) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        match item.method {
            Method::Tiles(tiles) => in_tiles.push(item.in_tiles(tiles)),
            Method::Raw { bits } => {
                let raw = symbols_item(item, item.addresses.data, elements_of(item));
                match *bits {
                    Some(bits) => element_bits.push(bits_item(bits, item.kind, raw)),
                    None => symbols.push(raw),
                }
            }
            Method::Zstd { .. } => panic!("coder zstd is nvCOMP's"),
        }
    }
    in_tiles.sort_by_key(TilesItem::key);
    for items in in_tiles.chunk_by(|a, b| a.key() == b.key()) {
        for l in tiles_launches(items, LIMITS).unwrap() {
            let launch = Launch::new(l.module, &l.kernel).grid(l.grid).threads(l.threads).shared(l.shared);
            let launch = launch.seed(seed).overlaps(true);
            launch.run(l.params.as_bytes(), memory).unwrap_or_else(|e| panic!("{}: {e}", l.kernel));
        }
    }
    let util = |kernel, params: &[u8], grid| {
        let launch = Launch::new(Module::Util, kernel).grid(grid).threads(UTIL_THREADS).seed(seed).overlaps(true);
        launch.run(params, memory).unwrap_or_else(|e| panic!("{kernel}: {e}"));
    };
    for items in symbols.chunks(abi::MAX_ITEMS) {
        let (batch, grid) = symbols_batch(items, LIMITS);
        util("wcodec_dequantize", batch.as_bytes(), grid);
    }
    for (batch, grid) in bits_batches(element_bits, LIMITS) {
        util("wcodec_fields", batch.as_bytes(), grid);
    }
}

/// Looks rows up by the items of one tensor.
fn look_up(items: &[WorkItem<'_>], ids: RowIds, out: u64, memory: &[Memory<'_>], seed: u64) {
    let launch = |item: &WorkItem<'_>| match item.method {
        Method::Tiles(tiles) => LookupLaunch::new(&item.in_tiles(tiles), LIMITS).unwrap(),
        _ => panic!("{} is not in tiles", item.plan.name()),
    };
    let mut items: Vec<_> = items.iter().collect();
    items.sort_by_key(|item| match item.method {
        Method::Tiles(tiles) => item.in_tiles(tiles).key(),
        _ => panic!("{} is not in tiles", item.plan.name()),
    });
    for l in items.into_iter().map(launch) {
        let (params, grid, threads, shared) = l.at(ids, out).unwrap();
        let launch = Launch::new(l.module, &l.kernel).grid(grid).threads(threads).shared(shared);
        launch.seed(seed).overlaps(true).run(params.as_bytes(), memory).unwrap_or_else(|e| panic!("{}: {e}", l.kernel));
    }
}

/// A poisoned output of so many bytes, with guards around it.
fn poisoned(bytes: usize) -> Buffer {
    let mut out = Buffer::new(bytes + 2 * GUARD);
    out.fill(POISON);
    out
}

/// Its bytes, around which nothing was written.
fn inside<'a>(out: &'a Buffer, what: &str) -> &'a [u8] {
    let end = out.len() - GUARD;
    assert!(out[..GUARD].iter().chain(&out[end..]).all(|&b| b == POISON), "{what}: wrote around");
    &out[GUARD..end]
}

/// A file that has the container's bytes, opened.
fn on_disk(dir: &tempfile::TempDir, bytes: &[u8]) -> Container {
    let path = dir.path().join("m.wcodec");
    std::fs::write(&path, bytes).unwrap();
    Container::open(&path).unwrap()
}

/// Tensors that kernels of ours decode: without coder `zstd`, and with more to be done than to copy.
fn of_ours(container: &Container, read: &DecodeOptions) -> Vec<(TensorInfo, TensorPlan)> {
    let plan = |info: TensorInfo| {
        let (tensor, tables) = container.structure_of(&info.name, read).unwrap();
        let plan = TensorPlan::of(&tensor, tables.into_iter()).unwrap();
        let copied = plan.tensor.symbol_scales().is_none() && !plan.tensor.is_joined();
        let other = |m: &Method| matches!(m, Method::Zstd { .. }) || copied && matches!(m, Method::Raw { .. });
        (!plan.planes.iter().any(other)).then_some((info, plan))
    };
    container.infos().unwrap().into_iter().filter_map(plan).collect()
}

/// The dtypes that a tensor can be decoded to as values.
fn dtypes(plan: &TensorPlan) -> Vec<Dtype> {
    if plan.tensor.is_joined() || !plan.tensor.scheme.makes_symbols() {
        return vec![plan.tensor.dtype];
    }
    vec![Dtype::F16, Dtype::BF16, Dtype::F32]
}

/// All of a tensor, by the scalar decoder.
fn all_rows(container: &Container, name: &str, dtype: Dtype) -> Vec<u8> {
    container.read_as(name, dtype, &oracle()).unwrap().to_vec()
}

/// Files of every coder and layout, of scheme `int8`, `rate` and `lossless`; transposed matrices and a stack among them.
fn samples(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let shapes = [vec![112, 512], vec![81, 330], vec![3, 36, 192], vec![40, 65], vec![150, 96]];
    let encodings = options().into_iter().step_by(3).chain(rate::options());
    let mut all: Vec<Vec<u8>> = encodings
        .enumerate()
        .map(|(i, o)| {
            let transpose = if i % 2 == 0 { vec!["w1".to_owned()] } else { Vec::new() };
            let (source, o) = (sample(rng, &shapes), EncodeOptions { transpose, ..o });
            let o = if i % 4 < 2 { with_columns(rng, &source, &o) } else { o };
            encode(&source, &o)
        })
        .collect();
    for coder in [Coder::Rans, Coder::Huffman] {
        let source = lossless::sources(rng, &[&[70, 200], &[40, 130]]);
        all.push(encode(&source, &lossless::options(coder, Some(64), 12)));
    }
    all
}

/// A residency for each name, any.
fn random_homes(rng: &mut StdRng, container: &Container) -> impl Fn(&str) -> Residency + use<> {
    let names = container.infos().unwrap().into_iter().map(|info| (info.name, ALL[rng.random_range(0..3)]));
    let homes: std::collections::HashMap<String, Residency> = names.collect();
    move |name| homes[name]
}

/// Some rows of a tensor that begin and end with strips, as many as there are at most.
fn some_rows(rng: &mut StdRng, plan: &TensorPlan) -> Range<usize> {
    let strips = plan.strips();
    let (a, b) = (rng.random_range(0..=strips), rng.random_range(0..=strips));
    plan.first_row(a.min(b))..plan.first_row(a.max(b))
}

#[test]
fn items_of_every_residency_decode_to_the_oracle() {
    let mut rng = StdRng::seed_from_u64(100);
    let dir = tempfile::tempdir().unwrap();
    let (mut outputs, mut most) = (0, 0);
    for bytes in samples(&mut rng) {
        let container = on_disk(&dir, &bytes);
        let ours = of_ours(&container, &oracle());
        for _ in 0..2 {
            let residency = random_homes(&mut rng, &container);
            let mut machine = Machine::new(&container, &mut rng, &residency, true);
            // All tensors, and some rows of some, each to its place in one output.
            let (mut items, mut want, mut at) = (Vec::new(), Vec::new(), GUARD);
            for (info, plan) in ours.iter().chain(&ours) {
                let dtypes = dtypes(plan);
                let dtype = dtypes[rng.random_range(0..dtypes.len())];
                let mut bytes = all_rows(&container, &info.name, dtype);
                let part = rng.random::<bool>() && !plan.tensor.transposed();
                let rows = part.then(|| some_rows(&mut rng, plan));
                if let Some(rows) = &rows {
                    let row = plan.row_bytes(plan.output(dtype).unwrap());
                    bytes = bytes[rows.start * row..rows.end * row].to_vec();
                }
                let begin = at;
                at = (begin + bytes.len() + GUARD).next_multiple_of(4);
                items.push((DecodeItem { name: info.name.clone(), out: begin as u64, dtype, rows }, begin));
                want.push(bytes);
            }
            let mut out = poisoned(at);
            let base = out.address();
            let placed = items.iter().map(|(t, begin)| DecodeItem { out: base + *begin as u64, ..t.clone() }).collect();
            most = most.max(machine.decode(&mut rng, placed, &mut out).unwrap());
            assert!(machine.check().is_none());
            let mut end = 0;
            for ((item, begin), want) in items.iter().zip(&want) {
                let what = format!("{} as {} {:?}", item.name, item.dtype, item.rows);
                assert!(out[end..*begin].iter().all(|&b| b == POISON), "{what}: wrote before it");
                end = begin + want.len();
                assert!(out[*begin..end] == want[..], "{what}, {:?}", residency(&item.name));
                outputs += 1;
            }
            assert!(out[end..].iter().all(|&b| b == POISON));
        }
    }
    assert!(outputs > 200 && most > 20, "{outputs} outputs, {most} slots");
}

#[test]
fn runs_of_rows_of_every_residency_are_those_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(101);
    let dir = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for bytes in samples(&mut rng) {
        let container = on_disk(&dir, &bytes);
        for (info, plan) in of_ours(&container, &oracle()) {
            if plan.tensor.transposed() {
                continue;
            }
            let dtypes = dtypes(&plan);
            let dtype = dtypes[rng.random_range(0..dtypes.len())];
            let row = plan.row_bytes(plan.output(dtype).unwrap());
            let bytes = all_rows(&container, &info.name, dtype);
            // In any order, some twice, and some of no rows.
            let runs: Vec<_> = (0..rng.random_range(1..7)).map(|_| some_rows(&mut rng, &plan)).collect();
            let want: Vec<u8> = runs.iter().flat_map(|r| bytes[r.start * row..r.end * row].to_vec()).collect();
            for residency in ALL {
                let mut machine = Machine::new(&container, &mut rng, &|_| residency, true);
                let mut out = poisoned(want.len());
                let to = out.address() + GUARD as u64;
                let item = DecodeItem { name: info.name.clone(), out: to, dtype, rows: None };
                let what = format!("{} {runs:?} as {dtype}, {residency:?}", info.name);
                if residency == Residency::Device {
                    let items = machine.tensors.runs(&item, &runs, |i| machine.addresses(i)).unwrap();
                    let items: Vec<_> = items.into_iter().filter(|item| !item.rows.is_empty()).collect();
                    let mut memory =
                        Machine::memory(&machine.packed_tensors, &machine.host, &machine.tables, &mut machine.statuses);
                    memory.push(Memory::write::<u8>(&mut out));
                    launch(&items, &memory, rng.random());
                } else {
                    let items = machine.tensors.run_items(&item, &runs).unwrap();
                    machine.decode(&mut rng, items, &mut out).unwrap();
                }
                assert!(machine.check().is_none(), "{what}");
                assert!(inside(&out, &what) == want, "{what}");
                seen += 1;
            }
        }
    }
    assert!(seen > 200, "{seen}");
}

/// Results that lie side by side for each vector, as those of one matrix behind those of the other. `sizes` are bytes of a vector's results.
fn by_matrix(results: &[u8], sizes: &[usize]) -> Vec<u8> {
    let all = sizes.iter().sum();
    let begins = sizes.iter().scan(0, |at, size| Some(std::mem::replace(at, *at + size)));
    begins
        .zip(sizes)
        .flat_map(|(at, size)| results.chunks(all).flat_map(move |vector| &vector[at..at + size]))
        .copied()
        .collect()
}

#[test]
fn products_of_every_residency_are_those_of_the_decoded_weights() {
    let mut rng = StdRng::seed_from_u64(102);
    let dir = tempfile::tempdir().unwrap();
    let (mut compared, mut slots) = (0, 0);
    let encodings = options().into_iter().step_by(2).chain(rate::options());
    for (i, o) in encodings.enumerate() {
        let source = sample(&mut rng, &[vec![112, 512], vec![81, 512], vec![3, 36, 512], vec![40, 512]]);
        let o = if i % 4 < 2 { with_columns(&mut rng, &source, &o) } else { o };
        let container = on_disk(&dir, &encode(&source, &o));
        let multiplied: Vec<_> =
            of_ours(&container, &oracle()).into_iter().filter(|(_, plan)| can_fuse(plan).is_none()).collect();
        if multiplied.is_empty() {
            continue;
        }
        let kind = [OutputKind::F16, OutputKind::BF16][i % 2];
        let dtype = [Dtype::F16, Dtype::BF16][i % 2];
        let count = [1, 5, 8][i % 3];
        let inputs = Inputs::new(&mut rng, kind, count, 512, 2.0);
        let rows: usize = multiplied.iter().map(|(_, plan)| plan.rows()).sum();
        let bias: Vec<u8> = (0..rows).flat_map(|_| product::bits(kind, rng.random_range(-1.0..1.0))).collect();
        let bias = Buffer::from(&bias[..]);
        let mut first: Option<Vec<u8>> = None;
        for turn in 0..4 {
            // All of one residency, and then each of any.
            let homes = random_homes(&mut rng, &container);
            let residency = |name: &str| if turn < 3 { ALL[turn] } else { homes(name) };
            let mut machine = Machine::new(&container, &mut rng, &residency, true);
            let items: Vec<ProductItem> = multiplied
                .iter()
                .map(|(info, _)| ProductItem {
                    name: info.name.clone(),
                    dtype,
                    rows: None,
                    bias: 0,
                    part: ProductPart::Result,
                    vector: 0,
                })
                .collect();
            // Side by side for each vector in the last turn.
            let order = if turn < 3 { ResultOrder::ByMatrix } else { ResultOrder::ByVector };
            let mut out = poisoned(rows * count * 2);
            slots += machine.multiply(&mut rng, &items, order, &inputs, &bias, &mut out).unwrap();
            let what = format!("{o:?} turn {turn}");
            assert!(machine.check().is_none(), "{what}");
            let mut results = inside(&out, &what).to_vec();
            if order == ResultOrder::ByVector {
                let sizes: Vec<usize> = multiplied.iter().map(|(_, plan)| plan.rows() * 2).collect();
                results = by_matrix(&results, &sizes);
            }
            let mut at = 0;
            for (_, plan) in &multiplied {
                let end = at + plan.rows() * count * 2;
                let got: Vec<u16> =
                    results[at..end].as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
                product::compare(&container, plan, &inputs, None, 0..plan.rows(), &got, &what);
                at = end;
                compared += 1;
            }
            // Results have the same bits wherever bytes are.
            assert!(*first.get_or_insert_with(|| results.clone()) == results, "{what}");
        }
        // With what is added, and of some rows of a matrix.
        let (info, plan) = &multiplied[rng.random_range(0..multiplied.len())];
        let some = some_rows(&mut rng, plan);
        if some.is_empty() {
            continue;
        }
        for residency in ALL {
            let mut machine = Machine::new(&container, &mut rng, &|_| residency, true);
            let (name, part) = (info.name.clone(), ProductPart::Result);
            // Any address but 0 stands for the bias.
            let item = ProductItem { name, dtype, rows: Some(some.clone()), bias: 1, part, vector: 0 };
            let mut out = poisoned(some.len() * count * 2);
            machine.multiply(&mut rng, &[item], ResultOrder::ByMatrix, &inputs, &bias, &mut out).unwrap();
            let what = format!("{o:?} rows {some:?} of {}, {residency:?}", info.name);
            let got: Vec<u16> = inside(&out, &what).as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
            product::compare(&container, plan, &inputs, Some(&bias), some.clone(), &got, &what);
            compared += 1;
        }
    }
    assert!(compared > 150 && slots > 100, "{compared} products, {slots} slots");
}

#[test]
fn rows_looked_up_of_every_residency_are_those_of_the_whole() {
    let mut rng = StdRng::seed_from_u64(103);
    let dir = tempfile::tempdir().unwrap();
    let (mut seen, mut runs) = ([0; 3], 0);
    for bytes in samples(&mut rng) {
        let container = on_disk(&dir, &bytes);
        for (info, plan) in of_ours(&container, &oracle()) {
            if can_look_up(&plan).is_some() {
                continue;
            }
            for (i, residency) in ALL.into_iter().enumerate() {
                let dtypes = dtypes(&plan);
                let dtype = dtypes[rng.random_range(0..dtypes.len())];
                let kind = plan.output(dtype).unwrap();
                let ids = Ids::new(lookup::some_ids(&mut rng, plan.matrix.1), rng.random());
                let want = lookup::wanted(&all_rows(&container, &info.name, dtype), &ids.all, kind, plan.matrix.2);
                let mut machine = Machine::new(&container, &mut rng, &|_| residency, true);
                let mut out = poisoned(want.len());
                let what = format!("{:?} of {} as {dtype}, {residency:?}", ids.all, info.name);
                let took = machine.look_up(&mut rng, &info.name, dtype, &ids, &mut out).unwrap();
                assert!(machine.check().is_none(), "{what}");
                assert!(inside(&out, &what) == want, "{what}");
                if residency == Residency::Disk {
                    runs += took;
                }
                seen[i] += 1;
            }
        }
    }
    assert!(seen.iter().all(|&n| n > 40) && runs > 200, "{seen:?}, {runs} runs");
}

/// Rows that lie together are read once and looked up together; a number of no row takes the place of the first one.
#[test]
fn a_lookup_reads_what_it_needs() {
    let mut rng = StdRng::seed_from_u64(104);
    let dir = tempfile::tempdir().unwrap();
    let o = EncodeOptions { coder: Coder::Huffman, layout: Some(Layout::Pair), tile: Some(64), ..Default::default() };
    let container = on_disk(&dir, &encode(&sample(&mut rng, &[vec![320, 192]]), &o));
    let mut machine = Machine::new(&container, &mut rng, &|_| Residency::Disk, true);
    machine.slot *= 20;
    machine.pinned = machine.slot + (1 << 20);
    let item = DecodeItem { name: "w0".into(), out: 0, dtype: Dtype::F32, rows: None };
    let plan = |ids: &[i64]| {
        let lookup = FileLookup::new(&machine.sources(), &machine.tensors, &item, ids).unwrap();
        let pieces: Vec<_> =
            lookup.groups.iter().flat_map(|g| g.pieces.iter().map(|p| (p.rows.start, p.rows.end))).collect();
        (pieces, lookup.runs.concat())
    };
    assert_eq!(plan(&[35, 33, 47, 40]), (vec![(32, 48)], vec![(0, 0..4)]));
    // Strips one after the other are one piece.
    assert_eq!(plan(&[70, 50, 49]), (vec![(48, 80)], vec![(0, 0..3)]));
    assert_eq!(plan(&[300, 3, 301, 305]), (vec![(0, 16), (288, 320)], vec![(1, 0..1), (0, 1..2), (1, 2..4)]));
    assert_eq!(plan(&[-1, i64::MAX, 320]), (vec![(0, 16)], vec![(0, 0..3)]));
    assert_eq!(plan(&[100, -1]), (vec![(0, 16), (96, 112)], vec![(1, 0..1), (0, 1..2)]));
}

/// The message and its kind, as users see them, but for addresses.
fn refusal(e: &Error) -> (ErrorKind, String) {
    let text = e.to_string();
    let words = text.split(' ').map(|word| if word.starts_with("0x") { "0x.." } else { word });
    (e.kind(), words.collect::<Vec<_>>().join(" "))
}

#[test]
fn what_cannot_be_done_is_refused_alike_for_every_residency() {
    let mut rng = StdRng::seed_from_u64(105);
    let dir = tempfile::tempdir().unwrap();
    let o = EncodeOptions {
        coder: Coder::Huffman,
        layout: Some(Layout::Pair),
        transpose: vec!["w1".into()],
        ..Default::default()
    };
    let container = on_disk(&dir, &encode(&sample(&mut rng, &[vec![80, 192], vec![64, 96]]), &o));
    let mut all = Vec::new();
    for residency in ALL {
        let mut machine = Machine::new(&container, &mut rng, &|_| residency, true);
        let mut out = poisoned(80 * 192 * 4);
        let to = out.address() + GUARD as u64;
        let mut refused = Vec::new();
        for (name, dtype, rows, off) in [
            ("nobody", Dtype::F32, None, 0),
            ("w0", Dtype::F64, None, 0),
            ("w0", Dtype::F32, None, 2),
            ("w0", Dtype::F32, Some(0..90), 0),
            ("w0", Dtype::F32, Some(8..16), 0),
            ("w1", Dtype::F32, Some(0..16), 0),
        ] {
            // Behind one that can be done: nothing is written of that, too.
            let good = DecodeItem { name: "w0".into(), out: to, dtype: Dtype::F16, rows: None };
            let bad = DecodeItem { name: name.into(), out: to + off, dtype, rows: rows.clone() };
            refused.push(refusal(&machine.decode(&mut rng, vec![good, bad.clone()], &mut out).unwrap_err()));
            if let Some(rows) = rows {
                let runs = [0..16, rows];
                refused.push(refusal(&machine.tensors.run_items(&bad, &runs).unwrap_err()));
                refused.push(refusal(&machine.tensors.runs(&bad, &runs, |i| machine.addresses(i)).unwrap_err()));
            }
        }
        let ids = Ids::new(vec![1, 2], true);
        for (name, dtype) in [("nobody", Dtype::F32), ("w1", Dtype::F32), ("w0", Dtype::F64)] {
            refused.push(refusal(&machine.look_up(&mut rng, name, dtype, &ids, &mut out).unwrap_err()));
        }
        let inputs = Inputs::new(&mut rng, OutputKind::F16, 1, 192, 1.0);
        for (name, dtype) in [("nobody", Dtype::F16), ("w1", Dtype::F16), ("w0", Dtype::F32)] {
            let (part, name) = (ProductPart::Result, name.to_owned());
            let item = ProductItem { name, dtype, rows: None, bias: 0, part, vector: 0 };
            let (order, bias) = (ResultOrder::ByVector, Buffer::new(0));
            refused.push(refusal(&machine.multiply(&mut rng, &[item], order, &inputs, &bias, &mut out).unwrap_err()));
        }
        assert!(out.iter().all(|&b| b == POISON), "{residency:?}: wrote something");
        assert!(refused.iter().all(|(kind, _)| *kind == ErrorKind::Input), "{refused:?}");
        all.push(refused);
    }
    assert!(all[0] == all[1] && all[1] == all[2], "{all:?}");
}

/// Damaged files are not decoded where they are compared with hashes; otherwise the damage that kernels find is told, and rows that are looked
/// up show it.
#[test]
fn damage_in_the_file_is_found_whatever_is_asked() {
    let mut rng = StdRng::seed_from_u64(106);
    let dir = tempfile::tempdir().unwrap();
    let (mut refused, mut told, mut missed) = (0, 0, 0);
    let encodings = options().into_iter().filter(|o| o.layout == Some(Layout::Pair)).chain(rate::options());
    for (turn, o) in encodings.enumerate() {
        let mut bytes = encode(&sample(&mut rng, &[vec![112, 320], vec![64, 320]]), &o);
        let container = Container::from_bytes(bytes.clone()).unwrap();
        let stored = container.stored("w0").unwrap();
        if !matches!(of_ours(&container, &oracle()).first(), Some((info, p)) if info.name == "w0" && can_look_up(p).is_none())
        {
            continue;
        }
        let want = all_rows(&container, "w0", Dtype::F32);
        let good = all_rows(&container, "w1", Dtype::F32);
        let data = stored.planes[0].data;
        for _ in 0..40 {
            let at = rng.random_range(data.offset as usize..data.end() as usize);
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        let container = on_disk(&dir, &bytes);
        let item = |name: &str, to: u64| DecodeItem { name: name.into(), out: to, dtype: Dtype::F32, rows: None };
        let ids = Ids::new((0..10).map(|_| rng.random_range(0..112)).collect(), rng.random());
        // Compared with hashes: nothing of it is decoded, and what is sound is.
        let mut machine = Machine::new(&container, &mut rng, &|_| Residency::Disk, true);
        let mut out = poisoned(want.len());
        let to = out.address() + GUARD as u64;
        let runs = machine.tensors.run_items(&item("w0", to), &[0..16, 96..112]).unwrap();
        let errors = [
            machine.decode(&mut rng, vec![item("w0", to)], &mut out).unwrap_err(),
            machine.decode(&mut rng, runs, &mut out).unwrap_err(),
            machine.look_up(&mut rng, "w0", Dtype::F32, &ids, &mut out).unwrap_err(),
        ];
        for e in &errors {
            assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("w0")), "{e}");
            refused += 1;
        }
        assert!(out.iter().all(|&b| b == POISON), "{o:?}: wrote of a damaged tensor");
        machine.decode(&mut rng, vec![item("w1", to)], &mut out).unwrap();
        assert!(out[GUARD..GUARD + good.len()] == good[..] && machine.check().is_none());
        // Not compared: the same is told of every residency, and found in the same rows.
        let mut shown: Option<(Option<String>, Vec<u8>)> = None;
        for residency in ALL {
            let mut machine = Machine::new(&container, &mut rng, &|_| residency, false);
            let mut out = poisoned(want.len());
            machine.decode(&mut rng, vec![item("w0", out.address() + GUARD as u64)], &mut out).unwrap();
            let damage = machine.check();
            assert!(damage.as_ref().is_none_or(|e| e.tensor_name() == Some("w0") && e.kind() == ErrorKind::Corrupt));
            let row = 320 * 4;
            let mut rows = poisoned(ids.all.len() * row);
            machine.look_up(&mut rng, "w0", Dtype::F32, &ids, &mut rows).unwrap();
            let seen = machine.check();
            match (&damage, &seen) {
                (Some(_), Some(e)) => {
                    assert_eq!((e.kind(), e.tensor_name()), (ErrorKind::Corrupt, Some("w0")), "{e}");
                    let nan = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap()).is_nan();
                    assert!(inside(&rows, "rows").chunks_exact(4).any(nan), "{o:?}: damaged rows are no NaN");
                    told += 1;
                }
                // Strips that are sound, or whose damage shows in values alone.
                _ => {
                    assert!(seen.is_none(), "{seen:?}");
                    missed += 1;
                    for (i, &id) in ids.all.iter().enumerate().filter(|_| damage.is_none()) {
                        let is = &inside(&rows, "rows")[i * row..(i + 1) * row];
                        assert!(is == &inside(&out, "out")[id as usize * row..][..row], "turn {turn}: row {id}");
                    }
                }
            }
            let found = (seen.map(|e| e.to_string()), inside(&rows, "rows").to_vec());
            assert!(*shown.get_or_insert_with(|| found.clone()) == found, "{o:?}, {residency:?}");
        }
    }
    assert!(refused > 20 && told > 10 && told + missed > 20, "{refused} refused, {told} told, {missed} not");
}
