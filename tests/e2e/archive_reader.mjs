// Read an archive of fakexport and print what is in it as JSON: node archive_reader.mjs FILE
// It uses only docs/archive_format.md. The exit code is 1, with the reason on stderr, if it rejects the archive.
import { readFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { inflateRawSync } from "node:zlib";
import { dirname, join } from "node:path";

const FIELDS = {
  manifest: "format methods shared records",
  method: "versions source topology profiles device_map dtype dynamic_shapes skipped_checks load_hooks " +
    "unbound_constants library_operators library_modules library_classes weights tensors recipes computed prefix " +
    "call adapter parallel stage sizes parameters unpacked_parameters settings",
};
const FRAME = { archive_format: "pt2", archive_version: "0", byteorder: "little", ".data/version": "6\n" };
const DTYPES = { 1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
  8: "float64", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64" };
const ELEMENTS = {
  bool: [1, (b, at) => b[at] === 1], uint8: [1, (b, at) => b.readUInt8(at)], int8: [1, (b, at) => b.readInt8(at)],
  int16: [2, (b, at) => b.readInt16LE(at)], uint16: [2, (b, at) => b.readUInt16LE(at)],
  int32: [4, (b, at) => b.readInt32LE(at)], uint32: [4, (b, at) => b.readUInt32LE(at)],
  int64: [8, (b, at) => Number(b.readBigInt64LE(at))], uint64: [8, (b, at) => Number(b.readBigUInt64LE(at))],
  float32: [4, (b, at) => b.readFloatLE(at)], float64: [8, (b, at) => b.readDoubleLE(at)],
  bfloat16: [2, (b, at) => Buffer.from([0, 0, b[at], b[at + 1]]).readFloatLE()],
  complex64: [8, (b, at) => [b.readFloatLE(at), b.readFloatLE(at + 4)]],
  complex128: [16, (b, at) => [b.readDoubleLE(at), b.readDoubleLE(at + 8)]],
  float16: [2, (b, at) => {
    const bits = b.readUInt16LE(at), exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity)
      : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    return bits >> 15 ? -size : size;
  }],
};
const need = (holds, fault) => { if (!holds) throw new Error(fault); };
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const crcTable = Array.from({ length: 256 }, (_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n; });
const crc32 = (bytes) => ~bytes.reduce((crc, byte) => crcTable[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;

function records(file) {
  const end = file.length - 98;
  need(end > 0 && [["PK\x06\x06", 0], ["PK\x06\x07", 56], ["PK\x05\x06", 76]].every(([mark, at]) =>
    file.toString("latin1", end + at, end + at + 4) === mark), "the file does not end like an archive");
  const found = new Map();
  const long = (at) => Number(file.readBigUInt64LE(at));
  let at = long(end + 48);
  for (let count = long(end + 32); count > 0; count--) {
    need(file.readUInt32LE(at) === 0x02014b50, "an entry does not begin with PK\\1\\2");
    const nameLength = file.readUInt16LE(at + 28), extraLength = file.readUInt16LE(at + 30);
    const name = file.toString("latin1", at + 46, at + 46 + nameLength);
    let wide = at + 46 + nameLength + 4;
    const field = (offset) => {
      if (file.readUInt32LE(at + offset) !== 0xffffffff) return file.readUInt32LE(at + offset);
      wide += 8;
      return long(wide - 8);
    };
    const size = field(24), packed = field(20), header = field(42);
    const data = header + 30 + file.readUInt16LE(header + 26) + file.readUInt16LE(header + 28);
    need(data + packed <= end, `${name} is outside of the file`);
    let content = file.subarray(data, data + packed);
    if (file.readUInt16LE(at + 10) === 8) content = inflateRawSync(content, { maxOutputLength: size });
    need(content.length === size && crc32(content) === file.readUInt32LE(at + 16), `${name} is damaged`);
    need(name.startsWith("model/") && !found.has(name.slice(6)), `${name} is no name of a record`);
    found.set(name.slice(6), content);
    at += 46 + nameLength + extraLength;
  }
  return found;
}

function elements(bytes, { dtype, shape, stride, storage_offset }) {
  const [width, read] = ELEMENTS[dtype];
  let places = [storage_offset];
  shape.forEach((size, dim) => {
    places = places.flatMap((place) => Array.from({ length: size }, (_, i) => place + i * stride[dim]));
  });
  need(places.every((place) => (place + 1) * width <= bytes.length), "a tensor has more bytes than its record");
  return places.map((place) => read(bytes, place * width));
}

function archive(path) {
  const found = records(readFileSync(path));
  const json = (name) => JSON.parse(found.get(name));
  need(found.has("extra/fakexport/manifest.json"), "there is no manifest");
  for (const [name, text] of Object.entries(FRAME)) need(String(found.get(name)) === text, `${name} is not ${text}`);
  const manifest = json("extra/fakexport/manifest.json");
  need(manifest.format === "fakexport.archive/1", `the format is ${manifest.format}`);
  const known = (object, kind) => Object.keys(object).forEach((key) =>
    need(FIELDS[kind].split(" ").includes(key), `the field ${key} is unknown`));
  known(manifest, "manifest");
  need((manifest.records ?? []).length === found.size - 1, "the manifest does not list every record");
  for (const { name, size, sha256: hash } of manifest.records) {
    const content = found.get(name);
    need(content !== undefined && content.length === size && sha256(content) === hash, `${name} is not what was written`);
  }
  const methods = Object.entries(manifest.methods).map(([name, about]) => {
    known(about, "method");
    return [name, method(name, about, found, json, dirname(path))];
  });
  return { methods: Object.fromEntries(methods), shared: manifest.shared ?? [] };
}

function method(name, about, found, json, folder) {
  const bytes = ({ file, offset, length, sha256: hash }) => {
    need(!/^\/|^[A-Za-z]:|\\|(^|\/)\.\.(\/|$)/.test(file), `${file} is outside of the folder`);
    const part = (hash ? readFileSync(join(folder, file)) : found.get(file)).subarray(offset, offset + length);
    need(part.length === length && (!hash || sha256(part) === hash), `${file} is not what was linked`);
    return part;
  };
  const device = ({ type, index }) => (index === null ? type : `${type}:${index}`);
  const size = (value) => value.as_int ?? value.as_expr.expr_str.replace(/Symbol\('(\w+)'[^()]*\)/g, "$1");
  const described = (meta) => ({ dtype: DTYPES[meta.dtype], shape: meta.sizes.map(size) });
  const weights = (about.tensors ?? []).map((entry) => [entry.name, {
    dtype: entry.dtype, shape: entry.shape, device: entry.device, aliases: entry.aliases, source: entry.source ?? null,
    values: entry.location ? elements(bytes(entry.location), entry) : null,
  }]);
  const entryOf = Object.fromEntries((about.tensors ?? []).flatMap((entry) => [entry.name, ...entry.aliases].map((key) => [key, entry])));
  const computed = Object.entries(about.computed ?? {}).map(([key, record]) => {
    if (record === null) return [key, null];
    const { dtype, shape } = entryOf[key], count = shape.reduce((a, b) => a * b, 1);
    const all = found.get(record).length === count * ELEMENTS[dtype][0];
    return [key, elements(found.get(record), { dtype, shape: [count], stride: [all ? 1 : 0], storage_offset: 0 })];
  });
  const config = [`data/constants/${name}_constants_config.json`, `extra/fakexport/${name}_constants_config.json`];
  const constants = Object.entries(json(config.find((record) => found.has(record))).config).map(([key, entry]) => {
    const content = found.get(`data/constants/${entry.path_name}`), meta = entry.tensor_meta;
    if (meta === null) return [key, { object: sha256(content) }];
    need(content || entry.path_name.startsWith("tensor_unbound"), `${entry.path_name} is missing`);
    const layout = { ...described(meta), stride: meta.strides.map(size), storage_offset: 0 };
    return [key, { ...described(meta), device: device(meta.device), values: content ? elements(content, layout) : null }];
  });
  const program = json(`models/${name}.json`), { graph, signature } = program.graph_module;
  const value = ({ arg }) => {
    const [[kind, held]] = Object.entries(arg);
    if (kind === "as_tensor") return { name: held.name, ...described(graph.tensor_values[held.name]) };
    return { name: held.name ?? held.as_name ?? "", value: held.value ?? null };
  };
  const operators = {};
  for (const { target } of graph.nodes) operators[target] = (operators[target] ?? 0) + 1;
  const bounds = Object.entries(program.range_constraints).map(([key, { min_val, max_val }]) => [key, [min_val, max_val]]);
  return {
    source: about.source, topology: about.topology ?? null, weights: Object.fromEntries(weights),
    computed: Object.fromEntries(computed), constants: Object.fromEntries(constants),
    inputs: signature.input_specs.filter((spec) => spec.user_input).map((spec) => value(spec.user_input)),
    outputs: signature.output_specs.filter((spec) => spec.user_output).map((spec) => value(spec.user_output)),
    ranges: Object.fromEntries(bounds), operators,
  };
}

try {
  console.log(JSON.stringify(archive(process.argv[2])));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
