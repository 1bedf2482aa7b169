//! Generates the definition messages from `proto/`, the only schema source.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = "../../proto/trinitylake.proto";
    println!("cargo::rerun-if-changed={schema}");
    let descriptors = protox::compile([schema], ["../../proto"])?;
    prost_build::Config::new().btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}
