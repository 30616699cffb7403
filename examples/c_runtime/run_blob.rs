//! Runs a blob: reads each input from a file of raw elements, and writes each output to one, as run_blob.c does.
//!
//!     rustc run_blob.rs -L native=LIB -C link-arg=-Wl,-rpath,LIB     (LIB: the folder of libengine_runtime.so)
//!     ./run_blob model.blob x.bin ...

use std::ffi::{c_void, CStr, CString};
use std::os::raw::c_char;
use std::{env, fs, process, ptr, slice};

/// As in engine_runtime.h.
#[repr(C)]
struct Tensor {
    struct_size: usize,
    name: *const c_char,
    type_name: *const c_char,
    element_type: i32,
    rank: i32,
    shape: *const i64,
    bytes: usize,
}

enum Network {}
enum Request {}

#[link(name = "engine_runtime")]
extern "C" {
    fn engine_runtime_abi() -> i32;
    fn engine_runtime_message() -> *const c_char;
    fn engine_runtime_open(path: *const c_char, options: *const c_void, network: *mut *mut Network) -> i32;
    fn engine_runtime_close(network: *mut Network);
    fn engine_runtime_num_outputs(network: *const Network) -> usize;
    fn engine_runtime_output(network: *const Network, index: usize, tensor: *mut Tensor) -> i32;
    fn engine_runtime_create_request(network: *const Network, request: *mut *mut Request) -> i32;
    fn engine_runtime_destroy_request(request: *mut Request);
    fn engine_runtime_set_input(request: *mut Request, index: usize, data: *const c_void, bytes: usize) -> i32;
    fn engine_runtime_run(request: *mut Request) -> i32;
    fn engine_runtime_output_data(request: *mut Request, index: usize, data: *mut *const c_void) -> i32;
}

fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // The message of this thread, which stays until its next call.
    Err(unsafe { CStr::from_ptr(engine_runtime_message()) }.to_string_lossy().into_owned())
}

/// A network, and one request; both are freed in the end.
struct Runner {
    network: *mut Network,
    request: *mut Request,
}

impl Runner {
    fn open(path: &str) -> Result<Runner, String> {
        let mut runner = Runner { network: ptr::null_mut(), request: ptr::null_mut() };
        let path = CString::new(path).map_err(|error| error.to_string())?;
        unsafe {
            check(engine_runtime_open(path.as_ptr(), ptr::null(), &mut runner.network))?;
            check(engine_runtime_create_request(runner.network, &mut runner.request))?;
        }
        Ok(runner)
    }

    fn run(&mut self, inputs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        for (index, data) in inputs.iter().enumerate() {
            check(unsafe { engine_runtime_set_input(self.request, index, data.as_ptr().cast(), data.len()) })?;
        }
        check(unsafe { engine_runtime_run(self.request) })?;
        (0..unsafe { engine_runtime_num_outputs(self.network) }).map(|index| self.output(index)).collect()
    }

    fn output(&mut self, index: usize) -> Result<Vec<u8>, String> {
        let mut data = ptr::null();
        unsafe {
            let mut tensor: Tensor = std::mem::zeroed();
            tensor.struct_size = std::mem::size_of::<Tensor>();
            check(engine_runtime_output(self.network, index, &mut tensor))?;
            check(engine_runtime_output_data(self.request, index, &mut data))?;
            Ok(slice::from_raw_parts(data.cast::<u8>(), tensor.bytes).to_vec())
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        unsafe {
            engine_runtime_destroy_request(self.request);
            engine_runtime_close(self.network);
        }
    }
}

fn run(blob: &str, files: &[String]) -> Result<(), String> {
    let mut inputs = Vec::new();
    for path in files {
        inputs.push(fs::read(path).map_err(|error| format!("{path}: {error}"))?);
    }
    for (index, output) in Runner::open(blob)?.run(&inputs)?.iter().enumerate() {
        fs::write(format!("{blob}.{index}"), output).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if unsafe { engine_runtime_abi() } != 1 || arguments.len() < 2 {
        eprintln!("usage: run_blob model.blob input.bin ..., with a library of interface 1");
        process::exit(2);
    }
    if let Err(message) = run(&arguments[1], &arguments[2..]) {
        eprintln!("{message}");
        process::exit(1);
    }
}
