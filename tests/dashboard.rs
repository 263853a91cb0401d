//! `dp train --dashboard`: the page of a real run, asked by hand and by a real browser.

mod common;

use common::{Place, find, prepare_with, skip, small_input, stand_ins};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run that lasts until it is dropped, and the address of its page.
struct Run {
    child: Child,
    _place: Place,
    /// `127.0.0.1:8470`
    host: String,
    token: String,
    /// What it said before that.
    said: String,
}

impl Run {
    fn start(flags: &str) -> Run {
        Run::start_in(Place::with_data(), flags, |_| ())
    }

    /// `prepare` changes how the program is started.
    fn start_in(place: Place, flags: &str, prepare: impl Fn(&mut Command)) -> Run {
        let mut input = small_input(10_000_000, 1_000_000);
        input["training"]["disp_freq"] = 50.into();
        place.input("input.json", &input);
        let mut command = place.command(&format!("train {flags} input.json"));
        prepare(&mut command);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = lines.find_map(|line| {
            said += &format!("{line}\n");
            line.split_once("dashboard: http://").map(|(_, address)| address.to_owned())
        });
        let address = address.unwrap_or_else(|| panic!("no dashboard in\n{said}"));
        // Somebody must read, or the run would wait for that.
        std::thread::spawn(move || lines.for_each(drop));
        let (host, token) = address.split_once("/?token=").unwrap_or((&address, ""));
        Run { child, _place: place, host: host.to_owned(), token: token.to_owned(), said }
    }

    fn get(&self, target: &str) -> String {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn data(&self, rows: u64, every: u64) -> Value {
        let text = self.get(&format!("/data?token={}&rows={rows}&every={every}", self.token));
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Waits until so many rows are shown.
    fn wait_for_rows(&self, n: usize) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let data = self.data(0, 0);
            if data["rows"].as_array().unwrap().len() >= n {
                return data;
            }
            assert!(Instant::now() < deadline, "{data}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_run_is_shown_to_those_who_know_the_token() {
    let run = Run::start("--dashboard 127.0.0.1:0");
    let data = run.wait_for_rows(3);
    assert_eq!(data["rows"][1][0], 50.0);
    assert!(data["names"].as_array().unwrap().contains(&"rmse_f".into()));
    assert_eq!((data["ranks"].as_array().unwrap().len(), &data["steps"]["total"]), (1, &10_000_000.into()));
    assert!(
        data["log"].as_array().unwrap().iter().any(|line| line.as_str().unwrap().contains("Start to train"))
    );
    // What the page has already is not sent again.
    assert_eq!(run.data(2, data["every"].as_u64().unwrap())["first"], 2);
    for stranger in ["/", "/data", "/data?token=0123456789abcdef0123456789abcdef"] {
        assert!(run.get(stranger).starts_with("HTTP/1.1 403 "), "{stranger}");
    }
}

#[test]
fn the_load_of_a_gpu_is_shown_where_it_tells_and_where_it_does_not_the_log_says_so() {
    let libraries = ["libcuda.so.1", "libnvrtc.so.13", "libnvidia-ml.so.1"];
    for busy in [Some("37"), None] {
        let place = Place::with_data();
        let Some(folder) = stand_ins(place.path("lib"), &libraries) else { return };
        let cache = place.path("cache");
        let run = Run::start_in(place, "--dashboard 127.0.0.1:0 --device cuda", |command| {
            prepare_with(command, &cache, &folder);
            command.envs(busy.map(|busy| ("FAKE_NVML_BUSY", busy)));
        });
        let data = run.wait_for_rows(2);
        let refused = run.said.contains("the load of the GPU is not shown: cannot ask how busy");
        assert_eq!(refused, busy.is_none(), "{}", run.said);
        match busy {
            Some(_) => assert_eq!(
                (&data["gpus"][0]["busy"], &data["gpus"][0]["total"]),
                (&37.into(), &2_000_000_000_u64.into())
            ),
            None => assert_eq!(data["gpus"], serde_json::json!([null])),
        }
    }
}

#[test]
fn a_browser_draws_the_curves() {
    let Some(chromium) = find("chromium") else {
        return skip("the dashboard in a browser: chromium is not installed");
    };
    let run = Run::start("--dashboard=127.0.0.1:0 --dashboard-for-all");
    run.wait_for_rows(3);
    let profile = tempfile::tempdir().unwrap();
    let browser = Command::new(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args(["--disable-component-update", "--disable-sync", "--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{}/", run.host))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&browser.stdout);
    for text in [
        "id=\"curve-rmse_f\"",
        "id=\"curve-learning rate\"",
        "<path d=\"M",
        ">live<",
        ": trn: rmse = ", // of the log, whose first lines may be gone when the browser is there
        "rank 0",
    ] {
        assert!(page.contains(text), "{text} is not in\n{page}");
    }
}

#[test]
fn an_address_that_cannot_be_had_is_refused_before_training() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::with_data();
    place.input("input.json", &small_input(10, 10));
    let port = taken.local_addr().unwrap().port();
    place
        .dp(&format!("train --dashboard {port} input.json"))
        .fails(&["--dashboard: cannot serve at", "another"]);
    assert!(!place.path("model.ckpt-10.phx").exists());
}
