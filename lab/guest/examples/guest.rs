//! Boots a guest, moves it over loopback and prints what was seen: `cargo run -p skein-lab-guest --example guest -- MB
//! 'skein.…'`.

use std::process::Command;
use std::time::{Duration, Instant};

use skein_lab_guest::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let memory_mb: u32 = args.next().ok_or("give the guest's RAM in MiB, then its parameters")?.parse()?;
    let params = Params::parse(&args.collect::<Vec<_>>().join(" "))?;
    let start = Instant::now();
    let image = Image::prepare(&default_cache())?;
    println!("image        {:.2} s, kernel {}", start.elapsed().as_secs_f64(), image.version);

    let mut spec = Spec::new("example", image, memory_mb, params);
    spec.cpus = std::env::var("CPUS").map_or(Ok(1), |n| n.parse())?;
    if spec.params.disk_mb > 0 {
        spec.disk = Some(SharedDisk::create(&std::env::temp_dir(), spec.params.disk_mb)?);
    }
    let deadline = Duration::from_secs(120);
    let start = Instant::now();
    let mut source = Guest::boot(&spec, |qemu| Command::new(qemu))?;
    source.wait_ready(deadline)?;
    println!("ready        {:.2} s", start.elapsed().as_secs_f64());

    let measure = |guest: &mut Guest, what: &str| -> Result<(), Error> {
        let (cpu, time) = (guest.qemu.cpu_time()?, Instant::now());
        let before = guest.agent().status()?;
        std::thread::sleep(Duration::from_secs(3));
        let after = guest.agent().status()?;
        let cpu = (guest.qemu.cpu_time()? - cpu).as_secs_f64() / time.elapsed().as_secs_f64();
        let rate = (after.written - before.written) as f64 * 1e6 / (after.time_us - before.time_us) as f64;
        println!("{what:12} {:.1} % of a CPU, {rate:.0} pages/s, {:?}", cpu * 100.0, after.beat);
        Ok(())
    };
    measure(&mut source, "working")?;
    source.agent().quiet()?;
    measure(&mut source, "quiet")?;
    println!("verify       {:?}", source.agent().verify(deadline)?);
    source.agent().dirty()?;

    for round in 0..3 {
        let mut target = Guest::incoming(&spec, |qemu| Command::new(qemu))?;
        let uri = format!("unix:{}", target.directory().join("migrate").display());
        let moved = migrate(&mut source, &mut target, (&uri, &uri), &Tuning::default(), deadline, |_| {})?;
        println!(
            "migration {round}  {:.2} s, downtime {:?} ms, {:?}",
            moved.total.as_secs_f64(),
            moved.info.downtime,
            moved.gaps
        );
        println!("verify       {:?}", target.agent().verify(deadline)?);
        source = target;
    }
    println!("{:?}", source.agent().status()?);
    Ok(())
}
